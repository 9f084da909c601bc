"""Issue 13.5: with the order `fair`, one user's jobs do not delay all others, and every user starts gangs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.names import ANNOTATION_SUBMITTER
from muster.api.training_job import TrainingJob
from muster.kube.objects.struct import from_dict
from muster.scheduler.gangs.accounts import Account
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import JobFacts, Traits
from muster.scheduler.gangs.usage import ACCOUNTS_MAX, Usage
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.fair import MOVES_MAX, PACE_S, FairOrder, fair_places
from tests.unit.scheduler.world import START, World, when

DAY_S = 86_400.0
ANN: Account = ("user", "ann")
BOB: Account = ("user", "bob")


class FairWorld(World):
    """A world whose queue has the order `fair`; `run` plans as the controller does."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.settings = msgspec.structs.replace(self.settings, **{"order": "fair", **changes})
        self.fair = FairOrder()

    def submit(self, name: str, user: str, *, size: int = 1) -> None:
        self.set_job(name, JobFacts(submitter=user, since=self.now))
        self.add_gang(name, size)

    def decide(self) -> Any:
        self.state.snapshot(self.now)
        self.fair.apply_all(self.state, self.settings, self.now)
        return super().decide()

    def end(self, name: str) -> None:
        self.remove_gang(name)
        placement = self.placements.pop(f"default/{name}", None)
        if placement is not None:
            self.state.remove_placement(placement)
        self.state.jobs.remove(f"uid-{name}")

    def running(self) -> set[str]:
        return {gang.name for gang in self.state.snapshot(self.now).gangs.values() if gang.placement is not None}

    def in_order(self) -> list[str]:
        queues = self.state.snapshot(self.now).queues.values()
        gangs = [queue[at] for queue in queues for at in range(len(queue))]
        return [gang.name for gang in sorted(gangs, key=lambda gang: gang.order)]


def pod_class() -> PodClass:
    world = World()
    world.add_pod("p")
    return next(iter(world.gang("p").counts))


CLASS = pod_class()
"""A pod with 8 GPUs."""


def waiting(
    name: str, user: str, arrival: float, *, team: str = "", own: int = 0, priority: int = 0, queue: int = 1
) -> Gang:
    gang = Gang(f"default/{name}/uid", "default", name, "uid", 1, single=False)
    gang.arrival, gang.priority = arrival, priority
    gang.traits = Traits(team=team, queue_priority=own)
    gang.job = JobFacts(submitter=user)
    gang.queued_as = (frozenset({queue}), gang.order)
    gang.counts[CLASS] = 1
    return gang


def ordered(
    gangs: list[Gang],
    used: dict[Account, float],
    *,
    now: float = START,
    started: dict[tuple[Account, frozenset[int]], float] | None = None,
) -> list[str]:
    for key, place in fair_places(gangs, used, started or {}, now, DAY_S).items():
        next(gang for gang in gangs if gang.key == key).place = place
    return [gang.name for gang in sorted(gangs, key=lambda gang: gang.order)]


def test_the_user_with_less_usage_goes_first_and_equal_users_by_arrival() -> None:
    gangs = [waiting("a", "ann", START), waiting("b", "bob", START + 1), waiting("c", "cleo", START + 2)]
    assert ordered(gangs, {ANN: 500.0, BOB: 500.0}) == ["c", "a", "b"]


def test_users_with_the_same_usage_take_turns() -> None:
    gangs = [waiting(f"a{at}", "ann", START + at) for at in range(3)]
    gangs += [waiting(f"b{at}", "bob", START + 10 + at) for at in range(2)]
    assert ordered(gangs, {}) == ["a0", "b0", "a1", "b1", "a2"]


def test_the_places_of_a_team_among_other_teams_stay() -> None:
    gangs = [
        waiting("a1", "ann", START, team="red"),
        waiting("x", "xi", START + 1, team="blue"),
        waiting("b1", "bob", START + 2, team="red"),
        waiting("y", "xi", START + 3, team="blue"),
    ]
    assert ordered(gangs, {ANN: 1000.0, ("user", "xi"): 1e9}) == ["b1", "x", "a1", "y"]


def test_priority_classes_come_before_usage_and_own_priorities_order_only_own_jobs() -> None:
    gangs = [
        waiting("a1", "ann", START),
        waiting("a2", "ann", START + 1, own=100),
        waiting("b1", "bob", START + 2),
        waiting("class", "ann", START + 3, priority=1000),
    ]
    assert ordered(gangs, {ANN: 500.0, BOB: 10.0}) == ["class", "b1", "a2", "a1"]


def test_a_job_without_submitter_counts_for_its_namespace_with_all_jobs_there() -> None:
    usage = Usage()
    for name, user in (("a", "ann"), ("b", "bob"), ("c", "")):
        usage.add_ended(ended(name, user, hours=1), START)
    usage.set_half_life(DAY_S)
    totals = usage.totals(START)
    assert totals[("namespace", "default")] == pytest.approx(3 * totals[ANN])
    gangs = [waiting("unnamed", "", START), waiting("named", "ann", START + 1)]
    assert ordered(gangs, dict(totals)) == ["named", "unnamed"]


def test_an_overdue_user_goes_first_with_one_gang_per_queue() -> None:
    gangs = [waiting(f"a{at}", "ann", START + at) for at in range(3)]
    gangs += [waiting("other", "ann", START + 3, queue=2), waiting("b", "bob", START + DAY_S - 1)]
    used = {ANN: 1e9}
    assert ordered(gangs, used, now=START + DAY_S - 1)[0] == "b"
    assert ordered(gangs, used, now=START + DAY_S + 3) == ["a0", "other", "b", "a1", "a2"]
    started = {(ANN, frozenset({1})): START + DAY_S}
    assert ordered(gangs, used, now=START + DAY_S + 3, started=started) == ["other", "b", "a0", "a1", "a2"]


gang_lists = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cleo", ""]),
        st.sampled_from(["", "red", "blue"]),
        st.integers(0, 2),
        st.sampled_from([0, 1000]),
        st.floats(0, 2 * DAY_S),
    ),
    max_size=12,
)


@given(gang_lists, st.dictionaries(st.sampled_from([ANN, BOB, ("namespace", "default")]), st.floats(0, 1e6)))
@settings(max_examples=100, deadline=None)
def test_teams_keep_their_places_and_the_order_is_stable(
    drawn: list[tuple[str, str, int, int, float]], used: dict[Account, float]
) -> None:
    gangs = [
        waiting(f"g{at}", user, START + arrival, team=team, own=own, priority=priority)
        for at, (user, team, own, priority, arrival) in enumerate(drawn)
    ]
    before = [(gang.team, gang.priority) for gang in sorted(gangs, key=lambda gang: gang.order)]
    first = ordered(gangs, used, now=START + DAY_S)
    after = [(gang.team, gang.priority) for gang in sorted(gangs, key=lambda gang: gang.order)]
    assert after == before
    assert ordered(gangs, used, now=START + DAY_S) == first  # from the new order, nothing moves
    by_name = {gang.name: gang for gang in gangs}
    for one, two in pairwise(first):
        a, b = by_name[one], by_name[two]
        if (a.accounts, a.team, a.priority) == (b.accounts, b.team, b.priority):
            assert a.own_place < b.own_place


@pytest.mark.slow
@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.lists(st.integers(1, 64), min_size=1, max_size=40),
)
@settings(max_examples=100, deadline=None)
def test_another_users_jobs_are_in_front_only_up_to_the_difference_in_usage(
    heavy: float, light: float, sizes: list[int]
) -> None:
    world = World()
    for at, size in enumerate(sizes):
        world.set_job(f"a{at}", JobFacts(submitter="ann"))
        world.add_gang(f"a{at}", size, gpus=1)
    world.set_job("b", JobFacts(submitter="bob"))
    world.add_gang("b", 1, gpus=1)
    world.state.snapshot(world.now)
    gangs = list(world.state.queued())
    names = ordered(gangs, {ANN: heavy, BOB: light}, now=world.now)
    in_front = names[: names.index("b")]
    weights = [sizes[int(name[1:])] for name in in_front]
    if weights:
        assert heavy + PACE_S * sum(weights[:-1]) <= light  # the last of them still had its turn


# The whole scheduler


def test_one_users_thousand_jobs_delay_another_users_job_by_one_end() -> None:
    world = FairWorld()
    world.add_nodes("n0", "n1", "n2", "n3")
    for at in range(1000):
        world.submit(f"a{at}", "ann")
    world.run()
    assert world.running() == {"a0", "a1", "a2", "a3"}
    world.now += 3600.0
    world.submit("b", "bob")
    world.now += PACE_S
    world.run()
    assert world.in_order()[0] == "b"
    world.end("a2")
    world.run()
    assert "b" in world.running()
    assert len(world.running()) == 4


def test_arrival_order_lets_the_thousand_jobs_go_first() -> None:
    world = FairWorld(order="arrival")
    world.add_nodes("n0")
    for at in range(5):
        world.submit(f"a{at}", "ann")
    world.submit("b", "bob")
    world.run()
    world.now += DAY_S
    world.run()
    assert world.in_order() == ["a1", "a2", "a3", "a4", "b"]


def test_the_order_changes_back_and_running_gangs_keep_theirs() -> None:
    world = FairWorld()
    world.add_nodes("n0")
    for at in range(3):
        world.submit(f"a{at}", "ann")
    world.run()
    world.now += 600.0
    world.submit("b", "bob")
    world.now += PACE_S
    world.run()
    assert world.in_order() == ["b", "a1", "a2"]
    world.end("a0")
    world.run()
    kept = world.gang("b").order
    world.settings = msgspec.structs.replace(world.settings, order="arrival")
    world.run()
    assert world.running() == {"b"}
    assert world.gang("b").order == kept
    assert world.in_order() == ["a1", "a2"]
    assert all(world.gang(name).place is None for name in ("a1", "a2"))


def test_a_heavy_user_starts_a_gang_within_the_bound_although_new_users_keep_coming() -> None:
    world = FairWorld(fair_wait_max_s=4 * 3600.0)
    world.add_nodes("n0")
    world.submit("h0", "heavy")
    world.run()
    world.submit("h1", "heavy")
    world.now += 3600.0
    started_at = 0.0
    asked = world.now
    for hour in range(12):
        world.submit(f"new{hour}", f"user{hour}")
        world.submit(f"more{hour}", f"other{hour}")
        world.now += PACE_S
        for name in world.running():
            world.end(name)
        world.run()
        if "h1" in world.running():
            started_at = world.now
            break
        world.now += 3600.0
    assert 0 < started_at - asked <= 4 * 3600.0 + PACE_S


def test_many_moves_are_spread_over_plans() -> None:
    world = FairWorld()
    for at in range(MOVES_MAX + 10):
        world.add_member(f"a{at}", 0, 1)
        world.set_job(f"a{at}", JobFacts(submitter="ann", since=START))
    world.submit("b", "bob")
    world.state.usage.add_ended(ended("old", "ann", hours=5), world.now)
    world.state.snapshot(world.now)
    assert world.fair.apply(world.state, world.settings, world.now)
    assert world.in_order()[0] == "b"  # the front of the queue first
    assert not world.fair.apply(world.state, world.settings, world.now)


# Usage


def ended(name: str, user: str, *, hours: float, gpus: int = 8, ago_s: float = 0.0, phase: str = "Succeeded") -> Any:
    annotations = {ANNOTATION_SUBMITTER: user} if user else {}
    return from_dict(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations},
            "spec": {"replicas": 1, "image": "none", "gpusPerNode": gpus},
            "status": {
                "phase": phase,
                "startTime": when(START - ago_s - hours * 3600.0),
                "completionTime": when(START - ago_s),
            },
        },
        TrainingJob,
    )


def test_usage_decays_by_half_in_a_half_life() -> None:
    usage = Usage()
    usage.add_ended(ended("a", "ann", hours=1), START)
    usage.set_half_life(DAY_S)
    now = usage.totals(START)[ANN]
    assert 0.98 * 8 * 3600 < now <= 8 * 3600
    assert usage.totals(START + DAY_S)[ANN] == pytest.approx(now / 2)
    late = Usage()
    late.add_ended(ended("a", "ann", hours=1, ago_s=DAY_S), START)
    late.set_half_life(DAY_S)
    assert late.totals(START)[ANN] == pytest.approx(now / 2)


def test_the_configured_half_life_applies_to_jobs_that_ended_before_it_was_known() -> None:
    usage = Usage()
    usage.add_ended(ended("a", "ann", hours=1, ago_s=DAY_S), START)
    usage.set_half_life(DAY_S / 24)
    assert usage.totals(START)[ANN] < 0.01


def test_running_gangs_count_until_they_end_and_not_while_they_wait() -> None:
    world = FairWorld()
    world.add_nodes("n0")
    world.submit("a", "ann")
    world.submit("waits", "bob")
    world.run()
    world.now += 100.0
    world.state.snapshot(world.now)
    assert world.state.usage.totals(world.now)[ANN] == pytest.approx(800.0, rel=0.01)
    world.end("a")
    world.run()
    world.now += 100.0
    totals = world.state.usage.totals(world.now)
    assert totals[ANN] == pytest.approx(800.0, rel=0.01)
    assert totals[BOB] == pytest.approx(800.0, rel=0.01)


def test_a_new_leader_knows_the_usage_of_running_and_ended_jobs() -> None:
    world = FairWorld()
    world.add_nodes("n0", "n1")
    world.submit("a", "ann", size=2)
    world.run()
    world.now += 7200.0
    world.state.snapshot(world.now)
    before = world.state.usage.totals(world.now)
    world.forget_all()
    world.state.snapshot(world.now)
    assert world.state.usage.totals(world.now) == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{"hours": -1.0}, {"hours": 1.0, "phase": "Running"}],
    ids=["ended before its start", "not ended"],
)
def test_jobs_without_a_valid_run_do_not_count(changes: dict[str, Any]) -> None:
    usage = Usage()
    usage.add_ended(ended("a", "ann", **changes), START)
    usage.set_half_life(DAY_S)
    assert usage.totals(START) == {}


@pytest.mark.slow
def test_past_usage_is_bounded() -> None:
    usage = Usage()
    for at in range(ACCOUNTS_MAX + 5):
        usage.add_ended(ended(f"j{at}", f"u{at}", hours=1 + at / 1000), START)
    usage.set_half_life(DAY_S)
    usage.forget_old(START, DAY_S)
    totals = usage.totals(START)
    assert len(totals) == ACCOUNTS_MAX
    assert ("user", "u0") not in totals
    usage.forget_old(START + 60 * DAY_S, DAY_S)
    assert usage.totals(START) == {}


def test_a_clock_that_jumps_back_takes_nothing_away() -> None:
    world = FairWorld()
    world.add_nodes("n0")
    world.submit("a", "ann")
    world.run()
    world.now += 3600.0
    world.state.snapshot(world.now)
    world.now -= 7200.0
    world.end("a")
    world.run()
    assert world.state.usage.totals(world.now).get(ANN, 0.0) >= 0.0
