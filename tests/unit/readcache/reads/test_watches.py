"""Watches: where they start, what they send first, and when they fail."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from muster.readcache.hub.item import Item
from muster.readcache.hub.log import Expired
from muster.readcache.reads import lists, watches
from muster.readcache.reads.freshness import Limits
from muster.readcache.reads.watches import Watch
from muster.readcache.request import Answer, Forward, Target
from tests.unit.readcache.reads.loaded import PODS, Cache, body, pod, settled

WATCH = "/api/v1/pods?watch=1"
INITIAL = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
NO_INITIAL = "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"


def shown(data: bytes) -> list[str]:
    """Events as `TYPE name version`, `BOOKMARK version` (`END` for the end of the initial state) or `ERROR code`."""
    found = []
    for line in data.splitlines():
        event: dict[str, Any] = json.loads(line)
        obj = event["object"]
        meta = obj["metadata"]
        if event["type"] == "ERROR":
            found.append(f"ERROR {obj['code']}")
        elif event["type"] == "BOOKMARK":
            ends = meta.get("annotations") == {"k8s.io/initial-events-end": "true"}
            found.append(f"{'END' if ends else 'BOOKMARK'} {meta['resourceVersion']}")
        else:
            found.append(f"{event['type']} {meta['name']} {meta['resourceVersion']}")
    return found


async def opened(cache: Cache, query: str) -> tuple[Watch, list[bytes]]:
    """A watch whose initial state was read and that has started, and what it then sends."""
    watch = await cache.ask(WATCH + query)
    assert isinstance(watch, Watch), watch
    frames = list(watch.initial())
    watch.start(frames.extend)
    await settled()
    return watch, frames


@pytest.mark.parametrize(
    "query",
    ["", "&resourceVersion=", "&resourceVersion=0", "&resourceVersion=00", INITIAL, f"{INITIAL}&resourceVersion=7"],
)
async def test_state_is_sent_first(query: str) -> None:
    cache = Cache(pod("x", 3), pod("y", 4))
    watch, frames = await opened(cache, query)
    assert watch.content_type == "application/json"
    cache.source.apply("MODIFIED", pod("x", 11))
    await settled()
    assert shown(b"".join(frames)) == ["ADDED x 3", "ADDED y 4", "MODIFIED x 11"]


@pytest.mark.parametrize("query", ["", "&resourceVersion=0", INITIAL, f"{INITIAL}&resourceVersion=10"])
async def test_end_of_the_state_is_marked_if_bookmarks_are_wanted(query: str) -> None:
    _, frames = await opened(Cache(pod("x", 3)), f"{query}&allowWatchBookmarks=true")
    assert shown(b"".join(frames)) == ["ADDED x 3", "END 10"]


async def test_end_of_an_empty_state_is_marked_too() -> None:
    _, frames = await opened(Cache(), "&allowWatchBookmarks=true")
    assert shown(b"".join(frames)) == ["END 10"]


async def test_state_that_was_not_asked_for_in_words_has_no_end() -> None:
    _, frames = await opened(Cache(pod("x", 3)), "&resourceVersion=00&allowWatchBookmarks=true")
    assert shown(b"".join(frames)) == ["ADDED x 3"]


@pytest.mark.parametrize("query", [NO_INITIAL, f"{NO_INITIAL}&resourceVersion=0", "&resourceVersion=10"])
async def test_watch_without_a_state_begins_with_the_next_event(query: str) -> None:
    cache = Cache(pod("x", 3))
    _, frames = await opened(cache, query)
    cache.source.apply("ADDED", pod("y", 11))
    await settled()
    assert shown(b"".join(frames)) == ["ADDED y 11"]


async def test_watch_from_an_old_version_gets_what_it_missed() -> None:
    cache = Cache(pod("x", 3))
    cache.source.apply("ADDED", pod("y", 11))
    cache.source.apply("DELETED", pod("x", 12))
    _, frames = await opened(cache, "&resourceVersion=11")
    assert shown(b"".join(frames)) == ["DELETED x 12"]


async def test_object_that_leaves_the_selection_is_deleted_as_it_was_at_the_new_version() -> None:
    cache = Cache(pod("x", 3, labels={"app": "one"}))
    _, frames = await opened(cache, "&resourceVersion=10&labelSelector=app=one")
    cache.source.apply("MODIFIED", pod("x", 11, labels={"app": "two"}))
    await settled()
    assert shown(b"".join(frames)) == ["DELETED x 11"]
    assert b'"app":"one"' in b"".join(frames)


async def test_version_in_the_future_is_waited_for_without_an_error() -> None:
    cache = Cache(pod("x", 3))
    _, frames = await opened(cache, "&resourceVersion=20")
    cache.source.apply("ADDED", pod("y", 11))
    cache.source.apply("ADDED", pod("z", 21))
    await settled()
    assert shown(b"".join(frames)) == ["ADDED z 21"]


async def test_version_older_than_the_log_is_an_error_in_the_stream() -> None:
    answer = await Cache(pod("x", 3)).ask(f"{WATCH}&resourceVersion=9")
    assert isinstance(answer, Answer)
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert shown(body(answer)) == ["ERROR 410"]
    assert b"too old resource version: 9 (10)" in body(answer)


async def test_state_of_a_version_that_does_not_come_is_an_error_in_the_stream() -> None:
    answer = await Cache(pod("x", 3)).ask(f"{WATCH}{INITIAL}&resourceVersion=20")
    assert isinstance(answer, Answer)
    assert answer.status == 200
    assert shown(body(answer)) == ["ERROR 504"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("&sendInitialEvents=true", 422),
        ("&resourceVersionMatch=NotOlderThan", 422),
        (f"{INITIAL}&continue=x", 422),
        ("&continue=x", 422),
        ("&resourceVersion=abc", 500),
    ],
)
async def test_wrong_parameters_are_refused_before_the_stream(query: str, code: int) -> None:
    answer = await Cache(pod("x", 3)).ask(WATCH + query)
    assert isinstance(answer, Answer)
    assert answer.status == code


@pytest.mark.parametrize("query", ["&timeoutSeconds=-1", "&timeoutSeconds=x", "&fieldSelector=no.such=field"])
async def test_parameters_that_the_api_server_must_judge_are_forwarded(query: str) -> None:
    assert isinstance(await Cache(pod("x", 3)).ask(WATCH + query), Forward)


async def test_timeout_is_the_clients_or_between_30_and_60_minutes() -> None:
    cache = Cache(pod("x", 3))
    watch, _ = await opened(cache, "&timeoutSeconds=7")
    assert watch.deadline_s == 7
    for query in ("", "&timeoutSeconds=0"):
        watch, _ = await opened(cache, query)
        assert 1800 <= watch.deadline_s <= 3600


async def test_state_is_read_in_pages_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "PAGE", 2)
    cache = Cache(*(pod(f"p{index}", index + 1) for index in range(5)))
    watch = await cache.ask(f"{WATCH}&allowWatchBookmarks=1")
    assert isinstance(watch, Watch)
    initial = watch.initial()
    first = next(initial)
    cache.source.apply("DELETED", pod("p4", 11))
    cache.source.apply("ADDED", pod("p9", 12))
    frames = [first, *initial]
    watch.start(frames.extend)
    await settled()
    state = [f"ADDED p{index} {index + 1}" for index in range(5)]
    assert shown(b"".join(frames)) == [*state, "END 10", "DELETED p4 11", "ADDED p9 12"]


async def test_138728_watch_of_a_large_state_does_not_delay_events_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#138728: reading the state for a watch locked the cache, and lists were read from etcd."""
    monkeypatch.setattr(watches, "PAGE", 10)
    cache = Cache(*(pod(f"p{index:03}", index + 1) for index in range(100)), version=100)
    store, looked_at = cache.source.store, 0
    select = store.select

    def counted(*args: Any, **keywords: Any) -> Iterator[Item]:
        nonlocal looked_at
        for item in select(*args, **keywords):
            looked_at += 1
            yield item

    monkeypatch.setattr(store, "select", counted)
    started = []
    for _ in range(5):
        watch = await cache.ask(WATCH + INITIAL)
        assert isinstance(watch, Watch)
        initial = watch.initial()
        next(initial)
        started.append(initial)
    assert looked_at == 5 * 10
    cache.source.apply("MODIFIED", pod("p099", 101))
    listed = await cache.ask("/api/v1/pods")
    assert isinstance(listed, Answer)
    assert b'"resourceVersion":"101"' in body(listed)
    assert all(b'"resourceVersion":"101"' not in b"".join(rest) for rest in started)


async def test_138670_state_of_a_watch_needs_few_writes_and_hardly_more_bytes_than_a_list() -> None:
    """kubernetes/kubernetes#138670: each object of a WatchList is encoded and written separately."""
    count = 1000
    cache = Cache(*(pod(f"p{index:03}", index + 1) for index in range(count)), version=count)
    watch = await cache.ask(WATCH + INITIAL)
    assert isinstance(watch, Watch)
    pieces = list(watch.initial())
    size = sum(map(len, pieces))
    assert len(pieces) <= 1 + size // (64 << 10)
    around = len(b'{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1",}\n')
    assert size <= len(body(await cache.ask("/api/v1/pods"))) + count * around


async def test_karmada_6083_state_of_large_objects_is_copied_piece_by_piece() -> None:
    """karmada-io/karmada#6083: one informer on 200 MB of Secrets took 1.2 GB more memory."""
    size, count = 100_000, 50
    cache = Cache(*(pod(f"p{index}", index + 1, labels={"large": "x" * size}) for index in range(count)), version=count)
    watch = await cache.ask(WATCH + INITIAL)
    assert isinstance(watch, Watch)
    tracemalloc.start()
    try:
        sent = sum(map(len, watch.initial()))
        _, watch_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        target, query = Target("list", PODS), {"resourceVersion": "0"}
        listed = await lists.answer(target, query, cache.source, Limits())
        assert isinstance(listed, Answer)
        sent += sum(map(len, listed.body))
        _, list_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent > 2 * size * count
    assert max(watch_peak, list_peak) < 5 * size


async def test_openyurt_2481_object_that_leaves_one_selection_is_unchanged_for_all_others() -> None:
    """openyurtio/openyurt#2481: filters for one client changed the objects of the shared cache."""
    before, after = pod("x", 3, labels={"app": "one"}), pod("x", 11, labels={"app": "two"})
    cache = Cache(before)
    (_, narrow), (_, wide) = [await opened(cache, query) for query in ("&labelSelector=app%3Done", "")]
    cache.source.apply("MODIFIED", after)
    await settled()
    assert shown(narrow[-1]) == ["DELETED x 11"]
    assert b'"app":"one"' in narrow[-1]
    assert shown(wide[-1]) == ["MODIFIED x 11"]
    assert b'"app":"two"' in wide[-1]
    _, late = await opened(cache, "&resourceVersion=10")
    assert late == wide[-1:]
    assert before in body(await cache.ask("/api/v1/pods?resourceVersion=10&resourceVersionMatch=Exact"))
    assert after in body(await cache.ask("/api/v1/pods"))


async def test_client_that_reads_the_state_slower_than_the_log_forgets_must_watch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "PAGE", 1)
    cache = Cache(pod("x", 3), pod("y", 4))
    watch = await cache.ask(WATCH)
    assert isinstance(watch, Watch)
    initial = watch.initial()
    next(initial)
    cache.source.apply("ADDED", pod("z", 11))
    cache.source.apply("DELETED", pod("z", 12))
    while cache.source.store.hub.shorten():
        pass
    assert list(initial) == []
    with pytest.raises(Expired):
        watch.start(lambda frames: None)
