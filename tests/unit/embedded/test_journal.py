from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.embedded import journal as journal_module
from muster.embedded.journal import Journal, Locked
from muster.embedded.store import Store
from muster.readcache.hub.log import Expired


def opened(folder: Path) -> tuple[Journal, Store]:
    journal = Journal(folder)
    store = Store(journal)
    store.load()
    return journal, store


def put(store: Store, name: str, value: int = 0) -> None:
    store.put("configmaps", f"ns/{name}", {"metadata": {"name": name, "namespace": "ns"}, "data": {"v": str(value)}})


def contents(store: Store) -> dict[str, bytes]:
    return {key: item.data for key, item in store.define("configmaps").items.items()}


def test_written_records_are_read_back(tmp_path: Path) -> None:
    journal, store = opened(tmp_path)
    put(store, "a")
    put(store, "b")
    store.delete("configmaps", "ns/a")
    before, version = contents(store), store.version
    journal.close()
    _, again = opened(tmp_path)
    assert contents(again) == before
    assert again.version == version


@given(cut=st.integers(0, 400), garbage=st.binary(max_size=40))
@example(cut=1, garbage=b"}")  # the bytes that were cut off
@example(cut=1, garbage=b"}}")
@settings(max_examples=80, deadline=None)
def test_a_torn_tail_loses_only_what_was_torn(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    journal, store = opened(folder)
    states = [(0, contents(store))]
    for index in range(6):
        put(store, "a" if index % 2 else "b", index)
        states.append(((folder / "log-0").stat().st_size, contents(store)))
    journal.close()
    log = folder / "log-0"
    content = log.read_bytes()
    kept = max(0, len(content) - cut)
    written = content[:kept] + garbage
    log.write_bytes(written)
    journal, again = opened(folder)
    expected = [state for size, state in states if written[:size] == content[:size]][-1]
    assert contents(again) == expected
    put(again, "after")
    with_after = contents(again)
    journal.close()
    journal, once_more = opened(folder)
    assert contents(once_more) == with_after
    journal.close()


def test_compaction_keeps_everything_and_shrinks_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 2_000)
    journal, store = opened(tmp_path)
    journal._compact_at = 2_000
    for index in range(200):
        put(store, f"n{index % 5}", index)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
    before, version = contents(store), store.version
    journal.close()
    _, again = opened(tmp_path)
    assert (contents(again), again.version) == (before, version)


def test_a_crash_while_compacting_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, store = opened(tmp_path)
    put(store, "a")
    before = contents(store)

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        store.compact()
    monkeypatch.undo()
    journal.close()
    _, again = opened(tmp_path)
    assert contents(again) == before


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(Locked, match="in use"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_watches_resume_after_a_restart_but_not_from_before_the_snapshot(tmp_path: Path) -> None:
    journal, store = opened(tmp_path)
    put(store, "old")
    too_old = store.version - 1
    store.compact()
    resume = store.version
    put(store, "new")
    journal.close()
    _, again = opened(tmp_path)
    hub = again.define("configmaps").hub
    assert [event.item.name for event in hub.log.since(resume)] == ["new"]
    with pytest.raises(Expired):
        hub.log.since(too_old)
