"""A relist after missed changes: watches end in the true state, and can resume after any event that they saw."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import ALL
from muster.readcache.hub.store import KindStore, OutOfOrder
from muster.readcache.hub.view import WireView
from tests.support.hubmodel import NODE, Format, History, Seen, Thing, Turns, Wanted, read

KEYS = st.sampled_from(["a/x", "a/y", "b/x"])
APPS, NODES = st.sampled_from(["", "p"]), st.sampled_from(["", "n1"])
CHANGES = st.one_of(st.tuples(st.just("put"), KEYS, APPS, NODES), st.tuples(st.just("delete"), KEYS))
EXPIRIES = st.tuples(st.just("expire"), st.sampled_from(["a", "b"]))
STEPS = st.one_of(CHANGES, CHANGES, EXPIRIES, st.just(("away",)), st.just(("relist",)))
WANTED = st.builds(Wanted, app=st.sampled_from([None, "p"]), node=st.sampled_from([None, "n1"]))


class Follower:
    """A store that follows a history, and misses its changes while it is away."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.history = History()
        self.format = Format()
        self.store = KindStore(self.format, [NODE], loop=self.turns)
        self.view = WireView(self.format)
        self.away = False
        self.gaps: list[tuple[int, int]] = []
        self.relist()

    def step(self, name: str, *args: Any) -> None:
        if name == "away":
            self.away = True
        elif name == "relist":
            self.relist()
        elif name == "expire":
            for thing in self.history.expire(args[0]):
                if not self.away:
                    self.store.apply("DELETED", thing.data, self.format.head(thing.data), 0.0)
        elif name == "put" or args[0] in self.history.things:
            thing = self.history.put(*args) if name == "put" else self.history.delete(args[0])
            if not self.away:
                type_ = "MODIFIED" if name == "put" else "DELETED"
                self.store.apply(type_, thing.data, self.format.head(thing.data), 0.0)

    def relist(self) -> None:
        if self.store.version:
            self.gaps.append((self.store.version, self.history.version))
        things = self.history.things.values()
        self.store.replace([thing.data for thing in things], self.history.version, 0.0)
        self.away = False

    def watch(self, wanted: Wanted, version: int) -> list[bytes]:
        pieces: list[bytes] = []
        self.store.subscribe(wanted.selection, version, self.view, pieces.extend)
        return pieces


def replay(state: dict[str, Thing], seen: list[Seen], wanted: Wanted) -> dict[str, tuple[int, str, str]]:
    """The state of a client: a list, and the events after it. Checks that each event can follow."""
    known = {key: (thing.version, thing.app, thing.node) for key, thing in state.items() if wanted.has(thing)}
    for type_, key, version, app, node in seen:
        assert (key in known) is (type_ != "ADDED"), (type_, key, known)
        if type_ == "DELETED":
            assert known.pop(key)[0] < version
        else:
            assert key not in known or known[key][0] < version
            known[key] = (version, app, node)
    return known


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40), WANTED, st.integers(1, 40))
def test_a_watch_over_relists_ends_in_the_true_state(steps: list[tuple[Any, ...]], wanted: Wanted, start: int) -> None:
    follower = Follower()
    pieces: list[bytes] | None = None
    for step in steps:
        if pieces is None and not follower.away and follower.history.version >= start:
            start = follower.history.version
            pieces = follower.watch(wanted, start)
        follower.step(*step)
    follower.step("relist")
    follower.turns.idle()
    assert follower.store.resets == 0
    history = follower.history
    assert [(item.key, item.version) for item in follower.store.select(ALL)] == sorted(
        (thing.key, thing.version) for thing in history.things.values()
    )
    if pieces is None:
        return
    seen = read(pieces)
    versions = [event[2] for event in seen]
    assert versions == sorted(versions)
    if "expire" not in {step[0] for step in steps}:
        assert len(versions) == len(set(versions))
    truth = replay(history.things, [], wanted)
    assert replay(history.at(start), seen, wanted) == truth
    for count, version in enumerate(versions, 1):
        inside = any(after < version < until for after, until in follower.gaps)
        try:
            rest = follower.watch(wanted, version)
        except Expired:
            assert inside, "only versions inside a gap are expired"
            continue
        assert not inside
        follower.turns.idle()
        assert read(rest) == [event for event in seen[count:] if event[2] > version]


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40), WANTED)
def test_an_exact_list_is_true_or_expired(steps: list[tuple[Any, ...]], wanted: Wanted) -> None:
    follower = Follower()
    for step in steps:
        follower.step(*step)
    follower.step("relist")
    for version in range(1, follower.history.version + 1):
        inside = any(after < version < until for after, until in follower.gaps)
        try:
            found = [(item.key, item.version) for item in follower.store.select(wanted.selection, at=version)]
        except Expired:
            assert inside
            continue
        expected = [thing for thing in follower.history.at(version).values() if wanted.has(thing)]
        assert not inside
        assert found == sorted((thing.key, thing.version) for thing in expected)


def reset_of(follower: Follower) -> tuple[list[str], list[bytes]]:
    reasons: list[str] = []
    pieces: list[bytes] = []
    follower.store.subscribe(ALL, follower.store.version, follower.view, pieces.extend, reasons.append)
    return reasons, pieces


def test_a_list_of_an_older_version_resets_all_watches() -> None:
    """etcd was restored from a backup: what clients know may never have been."""
    follower = Follower()
    follower.step("put", "a/x", "", "")
    backup = follower.history.things["a/x"], follower.history.version
    follower.step("put", "a/y", "", "")
    reasons, pieces = reset_of(follower)
    follower.store.replace([backup[0].data], backup[1], 0.0)
    follower.turns.idle()
    assert (reasons, pieces) == (["reset"], [])
    assert follower.store.resets == 1
    assert (follower.store.version, follower.store.oldest) == (backup[1], backup[1])
    assert [item.key for item in follower.store.select(ALL)] == ["a/x"]
    assert len(follower.store.hub) == 0


@pytest.mark.parametrize(
    "listed",
    [
        [Thing("a/x", "u", 2, "", "n1"), Thing("a/y", "v", 3, "", "")],  # a change that was missed before this version
        [Thing("a/x", "other", 3, "", "")],  # another object with the version of one that is known
        [Thing("a/x", "u", 3, "", ""), Thing("a/y", "v", 3, "", "")],  # two changes with one version
        [Thing("a/x", "u", 3, "", ""), Thing("a/y", "v", 9, "", "")],  # later than the list itself
    ],
)
def test_a_list_that_cannot_follow_the_known_state_resets_all_watches(listed: list[Thing]) -> None:
    follower = Follower()
    version = 3
    known = [Thing("a/x", "u", 3, "", ""), Thing("a/z", "w", 2, "", "")]
    follower.store.replace([thing.data for thing in known], version, 0.0)
    reasons, pieces = reset_of(follower)
    follower.store.replace([thing.data for thing in listed], version + 1, 0.0)
    follower.turns.idle()
    assert (reasons, pieces) == (["reset"], [])
    assert sorted(item.key for item in follower.store.select(ALL)) == [thing.key for thing in listed]


def test_an_equal_list_costs_nothing() -> None:
    follower = Follower()
    follower.step("put", "a/x", "", "")
    kept = follower.store.get("a/x")
    reasons, pieces = reset_of(follower)
    follower.relist()
    follower.turns.idle()
    assert (reasons, pieces) == ([], [])
    assert follower.store.get("a/x") is kept


def test_the_same_version_in_new_bytes_is_served_without_an_event() -> None:
    """An upgraded API server writes the same object with another default."""
    follower = Follower()
    follower.step("put", "a/x", "", "")
    _, pieces = reset_of(follower)
    new = follower.history.things["a/x"].data.replace(b'"app": ""', b'"app":""')
    follower.store.replace([new], follower.history.version, 0.0)
    follower.turns.idle()
    found = follower.store.get("a/x")
    assert found is not None
    assert (found.data, pieces) == (new, [])


def test_an_object_that_was_recreated_while_away_is_removed_and_added() -> None:
    follower = Follower()
    follower.step("put", "a/x", "p", "")
    _, pieces = reset_of(follower)
    for step in (("away",), ("delete", "a/x"), ("put", "a/x", "", ""), ("put", "a/y", "", "")):
        follower.step(*step)
    follower.relist()
    follower.turns.idle()
    x, y = follower.history.things["a/x"].version, follower.history.things["a/y"].version
    assert read(pieces) == [
        ("DELETED", "a/x", x - 1, "p", ""),
        ("ADDED", "a/x", x, "", ""),
        ("ADDED", "a/y", y, "", ""),
    ]


def test_events_that_cannot_follow_ask_for_a_list() -> None:
    follower = Follower()
    follower.step("put", "a/x", "", "")
    old = follower.history.things["a/x"]
    with pytest.raises(OutOfOrder, match="MODIFIED of version 2 after 2"):
        follower.store.apply("MODIFIED", old.data, follower.format.head(old.data), 0.0)
    other = Thing("a/x", "another", 7, "", "")
    with pytest.raises(OutOfOrder, match="recreated"):
        follower.store.apply("ADDED", other.data, follower.format.head(other.data), 0.0)
    assert follower.store.version == 2


def test_removals_of_a_lease_at_one_version_are_all_passed_on() -> None:
    """Upstream sends them in several pieces, so a flush may come between two of them."""
    follower = Follower()
    for key in ("a/x", "a/y"):
        follower.step("put", key, "", "")
    _, live = reset_of(follower)
    paused: list[bytes] = []
    watch = follower.store.subscribe(ALL, follower.store.version, follower.view, paused.extend)
    watch.pause()
    for thing in follower.history.expire("a"):
        follower.store.apply("DELETED", thing.data, follower.format.head(thing.data), 0.0)
        follower.turns.idle()
    watch.resume()
    follower.turns.idle()
    version = follower.store.version
    assert read(live) == read(paused) == [("DELETED", key, version, "", "") for key in ("a/x", "a/y")]


def test_removals_of_a_lease_that_were_missed_share_the_version_of_the_list() -> None:
    follower = Follower()
    for key in ("a/x", "a/y", "b/x"):
        follower.step("put", key, "", "")
    reasons, pieces = reset_of(follower)
    for step in (("away",), ("expire", "a"), ("relist",)):
        follower.step(*step)
    follower.turns.idle()
    assert reasons == []
    assert [event[:3] for event in read(pieces)] == [("DELETED", key, 5) for key in ("a/x", "a/y")]


def test_a_watch_from_a_version_that_is_not_known_yet_begins_there() -> None:
    """The client read it from another replica, which is ahead."""
    follower = Follower()
    seen: list[bytes] = []
    watch = follower.store.subscribe(ALL, 3, follower.view, seen.extend)
    late: list[bytes] = []
    follower.store.subscribe(ALL, 6, follower.view, late.extend)
    for key in ("a/v", "a/w", "a/x"):
        follower.step("put", key, "", "")
        follower.turns.idle()
    assert watch.version == 4
    follower.store.bookmark(6, 0.0)
    follower.history.version = 6
    follower.step("put", "a/y", "", "")
    follower.turns.idle()
    assert [event[1:3] for event in read(seen)] == [("a/x", 4), ("a/y", 7)]
    assert [event[1:3] for event in read(late)] == [("a/y", 7)]


def test_the_number_of_gaps_is_limited() -> None:
    follower = Follower()
    for _ in range(200):
        follower.step("away")
        follower.step("put", "a/x", "", "")
        follower.step("put", "a/y", "", "")
        follower.relist()
    assert 1 < follower.store.oldest < follower.store.version
    with pytest.raises(Expired):
        follower.store.select(ALL, at=follower.store.oldest - 1)
