from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from muster.readcache.hub.limits import Budget, Limits
from muster.readcache.hub.selection import ALL
from muster.readcache.hub.store import KindStore
from muster.readcache.hub.subscription import Subscription
from muster.readcache.hub.view import WireView
from tests.support.hubmodel import NODE, Format, Head, Thing, Turns, Wanted, read


def store_of(turns: Turns, limits: Limits | None = None, *things: Thing) -> KindStore:
    store = KindStore(Format(), [NODE], loop=turns, limits=limits or Limits())
    store.replace([thing.data for thing in things], max([1, *(thing.version for thing in things)]), 0.0)
    return store


def put(store: KindStore, version: int, key: str = "a/x", node: str = "") -> None:
    thing = Thing(key, key, version, "", node)
    store.apply("MODIFIED", thing.data, Format().head(thing.data), 0.0)


def thing_head(thing: Thing, version: int) -> Head:
    return Format().head(thing.data)._replace(version=version)


def test_watches_with_the_same_selection_share_the_bytes_and_one_turn() -> None:
    turns = Turns()
    store = store_of(turns)
    pieces: list[list[bytes]] = [[], []]
    calls = [0, 0]
    for index in range(2):

        def take(got: list[bytes], index: int = index) -> None:
            calls[index] += 1
            pieces[index].extend(got)

        store.subscribe(Wanted(node="n1").selection, 1, WireView(Format()), take)
    put(store, 2, "a/x", "n1")
    put(store, 3, "a/y", "n1")
    assert calls == [0, 0]
    turns.turn()
    assert calls == [1, 1]
    assert pieces[0][0] is pieces[1][0]
    assert len(read(pieces[0])) == 2


def test_watches_that_catch_up_from_the_same_version_share_the_bytes() -> None:
    """Thousands of clients reconnect at once when a replica of the cache goes away."""
    turns = Turns()
    store = store_of(turns)
    put(store, 2)
    put(store, 3)
    pieces: list[list[bytes]] = [[], [], []]
    for version, got in zip((1, 1, 2), pieces, strict=True):
        store.subscribe(ALL, version, WireView(Format()), got.extend)
    turns.idle()
    assert [[event[2] for event in read(got)] for got in pieces] == [[2, 3], [2, 3], [3]]
    assert pieces[0][0] is pieces[1][0]


def test_a_long_flush_lets_other_callbacks_run() -> None:
    turns = Turns(step_s=1.0)
    store = store_of(turns)
    done: list[int] = []
    for index in range(200):

        def take(pieces: list[bytes], index: int = index) -> None:
            done.append(index)

        store.subscribe(ALL, 1, WireView(Format()), take)
    put(store, 2)
    steps = []
    while len(done) < 200:
        turns.turn()
        steps.append(len(done))
    assert len(steps) > 3
    assert done == list(range(200))


def test_a_change_within_one_bucket_is_passed_on_once() -> None:
    turns = Turns()
    store = store_of(turns)
    seen: list[bytes] = []
    for wanted in (Wanted(node="n1"), Wanted(namespace="a"), Wanted(name="x"), Wanted()):
        store.subscribe(wanted.selection, 1, WireView(Format()), seen.extend)
    put(store, 2, node="n1")
    turns.idle()
    put(store, 3, node="n1")
    turns.idle()
    assert [event[2] for event in read(seen)] == [2] * 4 + [3] * 4


def test_catching_up_lets_other_callbacks_run() -> None:
    turns = Turns(step_s=1.0)
    store = store_of(turns)
    for version in range(2, 10):
        put(store, version)
    seen: list[list[bytes]] = [[], []]
    for pieces in seen:
        store.subscribe(ALL, 1, WireView(Format()), pieces.extend)
    turns.turn()
    assert [len(read(pieces)) for pieces in seen] == [8, 0]
    turns.idle()
    assert [len(read(pieces)) for pieces in seen] == [8, 8]


def test_watches_end_in_any_order() -> None:
    turns = Turns()
    store = store_of(turns)
    seen: list[list[bytes]] = [[] for _ in range(4)]
    watches = [store.subscribe(ALL, 1, WireView(Format()), pieces.extend) for pieces in seen]
    for version, index in enumerate((0, 3, 1, 2), 2):
        put(store, version)
        turns.idle()
        watches[index].close()
        assert len(store.hub) == 5 - version
    assert [len(read(pieces)) for pieces in seen] == [1, 3, 4, 2]


def test_the_version_of_a_watch_does_not_cover_events_before_they_are_flushed() -> None:
    turns = Turns()
    store = store_of(turns)
    watch = store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None)
    other = store.subscribe(Wanted(node="n1").selection, 1, WireView(Format()), lambda pieces: None)
    put(store, 2)
    assert (watch.version, other.version) == (1, 2)
    turns.idle()
    assert watch.version == 2


def test_the_log_counts_the_bytes_that_only_it_keeps() -> None:
    thing = Thing("a/x", "a/x", 2, "", "")
    size = len(thing.data)
    store = store_of(Turns())
    put(store, 2)
    assert (store.hub.bytes, store.objects.bytes) == (0, size)
    put(store, 3)
    assert (store.hub.bytes, store.objects.bytes) == (size, size)
    store.apply("DELETED", thing.data, thing_head(thing, 4), 0.0)
    assert (store.hub.bytes, store.objects.bytes) == (3 * size, 0)


def test_a_closed_store_gives_back_the_memory_of_its_log() -> None:
    budget = Budget(1 << 20)
    stores = [KindStore(Format(), [NODE], loop=Turns(), budget=budget) for _ in range(2)]
    for store in stores:
        store.replace([], 1, 0.0)
        for version in (2, 3, 4):
            put(store, version)
    assert budget.used == 2 * stores[0].hub.bytes > 0
    stores[1].close()
    assert budget.used == stores[0].hub.bytes


def test_a_watch_that_begins_within_a_long_flush_sees_nothing_twice() -> None:
    turns = Turns(step_s=1.0)
    store = store_of(turns)
    for _ in range(100):
        store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None)
    put(store, 2)
    put(store, 3)
    turns.turn()
    put(store, 4)
    seen: list[bytes] = []
    store.subscribe(ALL, 3, WireView(Format()), seen.extend)
    late: list[bytes] = []
    store.subscribe(ALL, 4, WireView(Format()), late.extend)
    put(store, 5)
    turns.idle()
    assert [event[2] for event in read(seen)] == [4, 5]
    assert [event[2] for event in read(late)] == [5]


def test_a_watch_may_close_others_while_it_takes_events() -> None:
    turns = Turns()
    store = store_of(turns)
    watches: list[Subscription] = []
    taken: list[bytes] = []

    def take(pieces: list[bytes]) -> None:
        taken.extend(pieces)
        for watch in watches:
            watch.close()

    watches += [store.subscribe(ALL, 1, WireView(Format()), take) for _ in range(3)]
    put(store, 2)
    turns.idle()
    put(store, 3)
    turns.idle()
    assert [event[2] for event in read(taken)] == [2]
    assert len(store.hub) == 0


def test_a_watch_that_raises_is_closed_and_reported_and_the_others_continue() -> None:
    turns = Turns()
    store = store_of(turns)
    reasons: list[str] = []
    seen: list[bytes] = []

    def fail(pieces: list[bytes]) -> None:
        raise ConnectionResetError

    store.subscribe(ALL, 1, WireView(Format()), fail, reasons.append)
    store.subscribe(ALL, 1, WireView(Format()), seen.extend)
    put(store, 2)
    put(store, 3)
    turns.idle()
    assert reasons == ["failed"]
    assert [type(error) for error in turns.errors] == [ConnectionResetError]
    assert len(read(seen)) == 2


def test_bytes_that_cannot_be_patched_close_only_the_watches_that_need_them() -> None:
    class Broken(Format):
        media_type = "broken"

        def at_version(self, data: bytes, version: int) -> bytes:
            raise ValueError("not patchable")

    turns = Turns()
    store = store_of(turns, None, Thing("a/x", "a/x", 1, "", "n1"))
    reasons: list[str] = []
    seen: list[bytes] = []
    store.subscribe(Wanted(node="n1").selection, 1, WireView(Broken()), lambda pieces: None, reasons.append)
    store.subscribe(Wanted(node="n1").selection, 1, WireView(Format()), seen.extend, reasons.append)
    store.subscribe(ALL, 1, WireView(Broken()), seen.extend, reasons.append)
    put(store, 2, node="n2")
    turns.idle()
    assert reasons == ["failed"]
    assert sorted(event[0] for event in read(seen)) == ["DELETED", "MODIFIED"]
    assert len(turns.errors) == 1


def test_a_paused_watch_keeps_no_bytes_and_is_dropped_at_the_limit() -> None:
    turns = Turns()
    store = store_of(turns, Limits(waiting_events=3))
    reasons: list[str] = []
    watch = store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None, reasons.append)
    watch.pause()
    for version in range(2, 5):
        put(store, version)
        turns.idle()
    assert (watch.closed, watch.behind, store.hub.behind) == ("", True, 1)
    put(store, 5)
    turns.idle()
    assert (reasons, watch.closed, store.hub.slow, store.hub.behind) == (["slow"], "slow", 1, 0)


def test_a_paused_watch_that_nothing_concerns_is_not_dropped() -> None:
    """A kubelet's watch may be paused while thousands of pods of other nodes change."""
    turns = Turns()
    store = store_of(turns, Limits(log_events=4, waiting_events=3))
    seen: list[bytes] = []
    watch = store.subscribe(Wanted(node="n1").selection, 1, WireView(Format()), seen.extend)
    watch.pause()
    for version in range(2, 30):
        put(store, version, "a/x", "n2")
        turns.idle()
    put(store, 30, "a/y", "n1")
    turns.idle()
    watch.resume()
    turns.idle()
    assert [event[:3] for event in read(seen)] == [("ADDED", "a/y", 30)]


def test_a_watch_that_is_paused_before_it_caught_up_gets_nothing_until_it_resumes() -> None:
    turns = Turns()
    store = store_of(turns)
    put(store, 2)
    seen: list[bytes] = []
    watch = store.subscribe(ALL, 1, WireView(Format()), seen.extend)
    watch.pause()
    turns.idle()
    assert seen == []
    watch.resume()
    turns.idle()
    assert [event[2] for event in read(seen)] == [2]


def test_too_many_events_within_a_long_flush_are_read_from_the_log() -> None:
    turns = Turns(step_s=1.0)
    store = store_of(turns, Limits(pending_events=2, clock_interval=1))
    seen: list[list[bytes]] = [[], []]
    for pieces in seen:
        store.subscribe(ALL, 1, WireView(Format()), pieces.extend)
    put(store, 2)
    turns.turn()
    assert [len(pieces) for pieces in seen] == [1, 0]
    for version in range(3, 7):
        put(store, version)
    turns.idle()
    assert [[event[2] for event in read(pieces)] for pieces in seen] == [[2, 3, 4, 5, 6]] * 2


def test_watches_whose_events_the_log_dropped_before_the_flush_end_as_slow() -> None:
    turns = Turns()
    store = store_of(turns, Limits(log_events=2, pending_events=1))
    reasons: list[str] = []
    store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None, reasons.append)
    for version in range(2, 9):
        put(store, version)
    turns.idle()
    assert reasons == ["slow"]


@pytest.mark.parametrize("version", [1, 2, 99])
def test_a_closed_watch_is_forgotten(version: int) -> None:
    """OpenYurt's multiplexer kept something for each watch that had ended (openyurtio/openyurt#2679)."""
    store = store_of(Turns())
    put(store, 2)

    def take(pieces: list[bytes]) -> None: ...

    kept = weakref.ref(take)
    watch = store.subscribe(Wanted(node="n1").selection, version, WireView(Format()), take)
    watch.close()
    del watch, take
    gc.collect()
    assert kept() is None


def test_equal_strings_and_labels_of_an_object_are_kept_once() -> None:
    store = store_of(Turns(), None, Thing("a/x", "a/x", 1, "p", ""))
    old = store.get("a/x")
    thing = Thing("a/x", "a/x", 2, "p", "")
    store.apply("MODIFIED", thing.data, Format().head(thing.data), 0.0)
    new = store.get("a/x")
    assert old is not None
    assert new is not None
    assert new is not old
    assert new.labels is old.labels
    assert new.key is old.key


async def test_waiting_for_a_version() -> None:
    store = store_of(Turns())
    assert await store.wait_for(1, 0.0)
    assert not await store.wait_for(2, 0.01)
    early, late = asyncio.create_task(store.wait_for(3, 60.0)), asyncio.create_task(store.wait_for(10**18, 60.0))
    await asyncio.sleep(0)
    put(store, 2)
    await asyncio.sleep(0)
    assert not early.done()
    store.bookmark(3, 5.0)
    assert await early
    assert store.seen_at == 5.0
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert len(store._waiters) == 0


async def test_waiting_ends_when_a_list_brings_the_version() -> None:
    store = store_of(Turns())
    waiting = asyncio.create_task(store.wait_for(7, 60.0))
    await asyncio.sleep(0)
    store.replace([], 9, 0.0)
    assert await waiting


def test_lists_by_name_and_index() -> None:
    turns = Turns()
    store = store_of(turns, None, *(Thing(f"{ns}/{name}", "", 1, "", node) for ns, name, node in (
        ("a", "x", "n1"), ("a-b", "x", "n2"), ("b", "x", "n1"), ("b", "y", ""),
    )))  # fmt: skip

    def keys(wanted: Wanted, after: str = "") -> list[str]:
        return [item.key for item in store.select(wanted.selection, after=after)]

    assert keys(Wanted()) == ["a-b/x", "a/x", "b/x", "b/y"]  # etcd's order: "-" is before "/"
    assert keys(Wanted(name="x")) == ["a-b/x", "a/x", "b/x"]
    assert keys(Wanted(name="x", namespace="b")) == ["b/x"]
    assert keys(Wanted(name="x", namespace="b"), "b/x") == []
    assert keys(Wanted(node="n1")) == ["a/x", "b/x"]
    assert keys(Wanted(node="")) == ["b/y"]
    assert keys(Wanted(node="n1", namespace="b"), "a/x") == ["b/x"]
    assert (store.count(), store.count("b"), store.count("b", "b/x"), store.count("c")) == (4, 2, 1, 0)


def test_a_cluster_scoped_object_is_found_by_its_name() -> None:
    store = store_of(Turns(), None, *(Thing(name, "", version, "", "") for version, name in enumerate("abc", 1)))
    assert [item.key for item in store.select(Wanted(name="b").selection)] == ["b"]
    assert list(store.select(Wanted(name="d").selection)) == []


def test_closing_a_store_ends_its_watches() -> None:
    store = store_of(Turns())
    reasons: list[str] = []
    watch = store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None, reasons.append)
    own = store.subscribe(ALL, 1, WireView(Format()), lambda pieces: None, reasons.append)
    own.close()
    store.close()
    assert reasons == ["stopped"]
    assert (watch.closed, own.closed, len(store.hub)) == ("stopped", "closed", 0)
