"""Gangs with a time limit run on nodes kept for a waiting gang, if they end before it starts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.queue.backfill import START_SLACK_S
from muster.scheduler.queue.projection import starts_by
from tests.unit.scheduler.world import World, reason_of

GRACE_S = 30.0


def limited(world: World, gang: str, size: int, limit_s: int, **spec: object) -> None:
    world.add_gang(gang, size, activeDeadlineSeconds=limit_s, **spec)


def waiting_head(*, limit_s: int | None = 1000) -> World:
    """Two of three nodes run something; a gang waits for all three."""
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("running", 2, **({"activeDeadlineSeconds": limit_s} if limit_s is not None else {}))
    world.run()
    world.add_gang("head", 3)
    return world


def test_the_start_of_a_waiting_gang_follows_from_the_limits_of_those_on_its_nodes() -> None:
    world = waiting_head()
    bound = world.placements["default/running"].status.bound_time
    assert bound is not None
    plan = world.run()
    start = plan.starts[world.gang("head").key]
    assert (start.earliest, start.latest) == (world.now, bound.timestamp() + START_SLACK_S + 1000 + GRACE_S)


def test_a_gang_that_ends_before_the_head_starts_runs_on_its_node() -> None:
    world = waiting_head()
    limited(world, "short", 1, 800)
    plan = world.run()
    assert len(world.nodes_of("short")) == 1
    assert reason_of(plan, world, "head") == "NotEnoughNodes"
    assert reason_of(plan, world, "short") == ""


def test_a_gang_that_may_end_too_late_or_never_waits_behind_the_head() -> None:
    world = waiting_head()
    limited(world, "long", 1, 1000)
    world.add_gang("endless", 1)
    plan = world.run()
    for gang in ("long", "endless"):
        assert world.nodes_of(gang) == {}
        assert reason_of(plan, world, gang) == "BehindInQueue"


def test_nothing_backfills_where_the_running_gangs_have_no_limits() -> None:
    world = waiting_head(limit_s=None)
    limited(world, "short", 1, 1)
    plan = world.run()
    assert plan.starts == {}
    assert world.nodes_of("short") == {}


def test_backfill_reaches_gangs_of_another_shape() -> None:
    world = waiting_head()
    limited(world, "small", 1, 100, gpus=1)
    world.add_gang("small-endless", 1, gpus=1)
    world.run()
    assert len(world.nodes_of("small")) == 1
    assert world.nodes_of("small-endless") == {}


def test_a_training_jobs_limit_counts_from_its_first_start() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.state.jobs.set("uid-running", JobFacts(limit_s=1000.0, grace_s=10.0, started_at=world.now - 700))
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 2)
    assert world.run().starts[world.gang("head").key].latest == world.now - 1 - 1 - 700 + 1000 + 10
    world.state.jobs.set("uid-running", JobFacts())
    assert world.run().starts == {}  # the limit was taken away


def test_a_node_is_free_only_when_the_last_gang_on_it_ends() -> None:
    world = World()
    world.add_nodes("a")
    limited(world, "early", 1, 100, gpus=4)
    limited(world, "late", 1, 500, gpus=4)
    world.run()
    world.add_gang("head", 1)
    start = world.run().starts[world.gang("head").key]
    bound = world.placements["default/late"].status.bound_time
    assert bound is not None
    assert start.latest == bound.timestamp() + START_SLACK_S + 500 + GRACE_S
    world.remove_pod("early-0-0")
    world.state.jobs.set("uid-early", JobFacts(ended="Failed"))
    world.add_pod("endless", {"gpus": 4})
    world.run()
    assert world.find("endless").spec.node_name == ""  # it would never end: the node is kept


def test_start_is_estimated_again_when_a_gang_ends_early() -> None:
    world = World()
    world.add_nodes("a", "b")
    limited(world, "one", 1, 100)
    limited(world, "two", 1, 5000)
    world.run()
    world.add_gang("head", 2)
    first = world.run().starts[world.gang("head").key].latest
    world.remove_gang("two")
    world.state.jobs.set("uid-two", JobFacts(ended="Succeeded"))
    assert world.run().starts[world.gang("head").key].latest < first


def test_a_gang_behind_the_head_starts_when_those_in_front_have_had_their_time() -> None:
    world = World()
    world.add_nodes("a", "b")
    limited(world, "running", 2, 1000)
    world.run()
    bound = world.placements["default/running"].status.bound_time
    assert bound is not None
    limited(world, "head", 2, 500)
    limited(world, "second", 1, 300)
    limited(world, "third", 2, 100)
    plan = world.run()
    ends = bound.timestamp() + START_SLACK_S + 1000 + GRACE_S
    latest = {}
    for gang in ("head", "second", "third"):
        start = starts_by(world.state.snapshot(), plan, world.gang(gang), world.now)
        assert start is not None
        latest[gang] = start.latest
        found = explain(world.state.snapshot(), world.gang(gang), now=world.now)
        assert found.when == start
        assert found.lines()[-1].startswith("starts: by ")
    after_head = ends + START_SLACK_S + 500 + GRACE_S
    assert latest == {
        "head": ends,
        "second": after_head,
        "third": after_head + START_SLACK_S + 300 + GRACE_S,
    }


def test_no_start_is_known_behind_an_unlimited_gang() -> None:
    world = World()
    world.add_nodes("a", "b", "c", labels={"kind": "one"})
    world.add_nodes("d", labels={"kind": "two"})
    limited(world, "running", 3, 1000, nodeSelector={"kind": "one"})
    limited(world, "other", 1, 700, nodeSelector={"kind": "two"})
    world.run()
    world.add_gang("endless", 3, nodeSelector={"kind": "one"})
    limited(world, "behind", 1, 10, nodeSelector={"kind": "one"}, priority=-1)
    limited(world, "head", 1, 100, nodeSelector={"kind": "two"})
    limited(world, "elsewhere", 1, 50, nodeSelector={"kind": "two"})
    plan = world.decide()
    known = {
        gang: starts_by(world.state.snapshot(), plan, world.gang(gang), world.now) is not None
        for gang in ("endless", "behind", "head", "elsewhere")
    }
    assert known == {"endless": True, "behind": False, "head": True, "elsewhere": True}


GANG = st.tuples(
    st.integers(1, 4),
    st.sampled_from([50, 200, 900, None]),
    st.sampled_from([8, 8, 2]),
    st.sampled_from([0, 10, 50, 200]),
    st.sampled_from([1.0, 0.3]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(GANG, min_size=2, max_size=10))
def test_a_waiting_gang_is_never_started_later_than_was_said(
    gangs: list[tuple[int, int | None, int, int, float]],
) -> None:
    """Gangs come, run a part of their limit (without one: 400 s), and go; no node breaks, all have one priority."""
    world = World()
    world.add_nodes(*"abcd")
    arrivals, latest, ends = dict(enumerate(gangs)), {}, {}
    step_s = 20.0  # when gangs come and go is seen so late
    for _ in range(600):
        for number, (size, limit_s, gpus, at, _) in list(arrivals.items()):
            if at <= world.now - 1_700_000_000.0:
                del arrivals[number]
                spec = {"activeDeadlineSeconds": limit_s} if limit_s else {}
                world.add_gang(f"g{number}", size, gpus=gpus, **spec)
        plan = world.run()
        for number, (size, limit_s, _, _, part) in enumerate(gangs):
            name = f"g{number}"
            if number in arrivals or name in ends:
                continue
            if len(world.nodes_of(name)) == size:
                assert world.now <= latest.get(name, world.now) + 2 * step_s, f"{name} runs later than was said"
                ends[name] = world.now + START_SLACK_S * part + (limit_s or 400) * part
                continue
            start = starts_by(world.state.snapshot(), plan, world.gang(name), world.now)
            if start is not None:
                latest[name] = min(start.latest, latest.get(name, start.latest))
        for name, end in ends.items():
            if world.now >= end and world.nodes_of(name):
                world.remove_gang(name)
                world.state.jobs.set(f"uid-{name}", JobFacts(ended="Succeeded"))
        if len(ends) == len(gangs):
            return
        world.now += step_s
    raise AssertionError(f"starved: {sorted(set(range(len(gangs))) - {int(name[1:]) for name in ends})}")
