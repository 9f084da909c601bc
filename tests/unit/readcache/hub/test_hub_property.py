"""Random changes, watches, pauses and limits: each watch sees exactly what the model says, in order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.readcache.hub.limits import Budget, Limits
from muster.readcache.hub.log import Expired
from muster.readcache.hub.store import KindStore
from muster.readcache.hub.subscription import Subscription
from muster.readcache.hub.view import WireView
from tests.support.hubmodel import NODE, Format, History, Seen, Turns, Wanted, read

KEYS = st.sampled_from(["a/x", "a/y", "a-b/x", "b/x", "b/z"])
APPS, NODES = st.sampled_from(["", "p", "q"]), st.sampled_from(["", "n1", "n2"])
WANTED = st.one_of(
    st.just(Wanted()),
    st.builds(
        Wanted,
        namespace=st.sampled_from(["", "", "a", "b"]),
        app=st.sampled_from([None, None, "p"]),
        not_app=st.sampled_from([None, None, "p"]),
        node=st.sampled_from([None, "n1", ""]),
        not_node=st.sampled_from([None, None, "n1"]),
        name=st.sampled_from([None, None, "x"]),
    ),
)
INDEX = st.integers(0, 7)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, APPS, NODES),
    st.tuples(st.just("put"), KEYS, APPS, NODES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("expire"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("bookmark"), st.integers(1, 3)),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("subscribe"), WANTED, st.integers(0, 12)),
    st.tuples(st.just("pause"), INDEX),
    st.tuples(st.just("pause within"), INDEX),
    st.tuples(st.just("resume"), INDEX),
    st.tuples(st.just("close"), INDEX),
    st.tuples(st.just("version"), INDEX),
    st.tuples(st.just("list"), WANTED, st.integers(0, 12), st.sampled_from(["", "a/x", "b"])),
)
LIMITS = st.builds(
    Limits,
    log_events=st.sampled_from([2, 5, 1000]),
    log_bytes=st.sampled_from([200, 1 << 20]),
    waiting_events=st.sampled_from([3, 1000]),
    pending_events=st.sampled_from([0, 1, 4, 1000]),
    chunk_bytes=st.sampled_from([1, 200, 1 << 20]),
    clock_interval=st.sampled_from([1, 32]),
    read_events=st.sampled_from([1, 1000]),
    index_watches=st.sampled_from([0, 8]),
)


@dataclasses.dataclass
class Watch:
    wanted: Wanted
    start: int
    seen: list[Seen] = dataclasses.field(default_factory=list)
    reason: str = ""
    pauses_within: bool = False
    paused_ever: bool = False
    began_behind: bool = False
    version: int = 0
    subscription: Subscription | None = None

    def frames(self, pieces: list[bytes]) -> None:
        assert self.subscription is not None, "events were passed on before `subscribe` returned"
        assert not self.subscription.paused
        assert not self.subscription.closed
        self.seen += read(pieces)
        if self.pauses_within:
            self.pauses_within = False
            self.paused_ever = True
            self.subscription.pause()

    def ended(self, reason: str) -> None:
        assert not self.reason
        self.reason = reason


class Machine:
    def __init__(self, limits: Limits, step_s: float, budget: Budget | None, *, eager: bool = False) -> None:
        self.eager = eager
        self.expired = False
        self.turns = Turns(step_s)
        self.history = History()
        self.format = Format()
        self.store = KindStore(self.format, [NODE], loop=self.turns, limits=limits, budget=budget)
        self.store.replace([], 1, 0.0)
        self.watches: list[Watch] = []
        self.view = WireView(self.format)

    def step(self, name: str, *args: Any) -> None:
        history, store = self.history, self.store
        if name == "put":
            thing = history.put(*args)
            store.apply("MODIFIED", thing.data, self.format.head(thing.data), 0.0)
        elif name == "delete":
            if args[0] in history.things:
                thing = history.delete(args[0])
                store.apply("DELETED", thing.data, self.format.head(thing.data), 0.0)
        elif name == "expire":
            for thing in history.expire(args[0]):
                self.turns.turn()
                store.apply("DELETED", thing.data, self.format.head(thing.data), 0.0)
                self.expired = True
        elif name == "bookmark":
            history.version += args[0]
            store.bookmark(history.version, 0.0)
        elif name == "turn":
            for _ in range(args[0]):
                self.turns.turn()
        elif name == "subscribe":
            self.subscribe(args[0], max(1, history.version - args[1]))
        elif name == "list":
            self.check_list(args[0], max(1, history.version - args[1]), args[2])
        elif self.watches:
            self.touch(name, self.watches[args[0] % len(self.watches)])
        if self.eager:
            self.turns.idle()

    def subscribe(self, wanted: Wanted, version: int) -> None:
        watch = Watch(wanted, version, version=version)
        try:
            watch.subscription = self.store.subscribe(wanted.selection, version, self.view, watch.frames, watch.ended)
        except Expired:
            assert version < self.store.oldest
        else:
            assert version >= self.store.oldest
            watch.began_behind = version < self.store.version
            self.watches.append(watch)

    def touch(self, name: str, watch: Watch) -> None:
        subscription = watch.subscription
        assert subscription is not None
        if name == "pause":
            subscription.pause()
            watch.paused_ever = True
        elif name == "pause within":
            watch.pauses_within = True
        elif name == "resume":
            subscription.resume()
        elif name == "close":
            subscription.close()
        else:
            self.check_version(watch)

    def check_version(self, watch: Watch) -> None:
        """The version of a watch covers exactly what it has seen, and never falls."""
        assert watch.subscription is not None
        if watch.subscription.closed:
            return
        version = watch.subscription.version
        assert version >= watch.version
        watch.version = version
        surely = self.history.seen(watch.wanted, watch.start, version - 1)
        assert watch.seen[: len(surely)] == surely
        # Some removals of a lease may be missing, as with kube-apiserver; and a version is a lower bound if the log no
        # longer has the last event that was seen.
        if not self.expired and version >= max([version, *(event[2] for event in watch.seen)]):
            assert watch.seen == self.history.seen(watch.wanted, watch.start, version)

    def check_list(self, wanted: Wanted, version: int, after: str) -> None:
        try:
            found = self.store.select(wanted.selection, after=after, at=version)
        except Expired:
            assert version < self.store.oldest
            return
        assert version == self.store.version or version >= self.store.oldest
        before = [(item.key, item.version) for item in self.store.select(wanted.selection, after=after)]
        late = self.store.select(wanted.selection, after=after)
        expected = [thing for thing in self.history.at(version).values() if wanted.has(thing) and thing.key > after]
        assert [(item.key, item.version) for item in found] == sorted((one.key, one.version) for one in expected)
        self.step("put", "a/y", "p", "n1")  # does not affect an iterator that was made before
        self.step("delete", "b/x")
        assert [(item.key, item.version) for item in late] == before

    def check(self) -> None:
        for watch in self.watches:
            expected = self.history.seen(watch.wanted, watch.start, self.history.version)
            assert watch.seen == expected[: len(watch.seen)]
            assert watch.subscription is not None
            if watch.reason:
                assert watch.reason == watch.subscription.closed == "slow"
                assert len(watch.seen) < len(expected) or watch.began_behind
        open_ = [watch for watch in self.watches if watch.subscription and not watch.subscription.closed]
        assert len(self.store.hub) == len(open_)
        assert self.store.hub.slow == sum(watch.reason == "slow" for watch in self.watches)

    def finish(self) -> None:
        for watch in self.watches:
            watch.pauses_within = False
            assert watch.subscription is not None
            watch.subscription.resume()
        self.turns.idle()
        self.check()
        for watch in self.watches:
            assert watch.subscription is not None
            if not watch.subscription.closed:
                assert watch.seen == self.history.seen(watch.wanted, watch.start, self.history.version)
                assert watch.subscription.version == self.history.version
                assert not watch.subscription.behind
        assert self.store.hub.behind == 0
        assert self.turns.errors == []


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=80), LIMITS, st.sampled_from([0.0, 1.0]), st.booleans())
def test_each_watch_sees_exactly_what_the_model_says(
    steps: list[tuple[Any, ...]], limits: Limits, step_s: float, eager: bool
) -> None:
    machine = Machine(limits, step_s, None, eager=eager)
    for step in steps:
        machine.step(*step)
        machine.check()
        if eager:
            for watch in machine.watches:
                assert watch.paused_ever or not watch.reason, "a watch that kept up was dropped"
    machine.finish()


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60), st.integers(0, 2000))
def test_the_budget_of_all_logs_is_kept_and_counted_exactly(steps: list[tuple[Any, ...]], bytes_max: int) -> None:
    budget = Budget(bytes_max)
    machines = [Machine(Limits(), 0.0, budget) for _ in range(2)]
    for index, step in enumerate(steps):
        machines[index % 2].step(*step)
        assert budget.used == sum(machine.store.hub.bytes for machine in machines) <= bytes_max
    for machine in machines:
        machine.finish()


def test_the_steps_reach_dropped_watches_and_expired_versions() -> None:
    """The property above says little if no watch is ever dropped."""
    machine = Machine(Limits(log_events=2, waiting_events=1), 0.0, None)
    machine.step("subscribe", Wanted(), 0)
    machine.step("pause", 0)
    for index in range(4):
        machine.step("put", f"a/{index}", "", "")
        machine.turns.idle()
    assert machine.watches[0].reason == "slow"
    with pytest.raises(Expired):
        machine.store.subscribe(Wanted().selection, 1, machine.view, lambda pieces: None)
