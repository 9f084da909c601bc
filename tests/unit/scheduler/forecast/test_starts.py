"""Forecasts of starts agree with what `decide` does, and use run times, time limits and backfill."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import EndedRun, RunTimes
from muster.scheduler.forecast.starts import SAMPLES, StartForecast, forecast_starts
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.memo import matcher_for
from tests.unit.scheduler.world import START, World

RUN_S = 600.0
RESTARTABLE = JobFacts(restartable=True)


def history(*run_s: float) -> RunTimes:
    """Jobs of one node that ran so long, ten of each."""
    like = Likeness("default", nodes=1, gpus=8)
    return RunTimes(EndedRun(like, each, True, 0.0) for each in run_s for _ in range(10))


def forecasts(world: World, **limits: int) -> dict[str, StartForecast]:
    snapshot = world.state.snapshot(world.now)
    found = forecast_starts(snapshot, matcher_for(snapshot), world.now, world.settings, **limits)
    return {snapshot.gangs[key].name: forecast for key, forecast in found.items()}


def full_cluster(*run_s: float, **facts: object) -> World:
    """Three nodes, each with a gang that runs; a gang waits for all three, and a small one behind it."""
    world = World()
    world.add_nodes("a", "b", "c")
    for name in ("one", "two", "three"):
        world.add_gang(name, 1)
    world.run()
    world.add_gang("head", 3)
    if facts:
        world.set_job("small", JobFacts(**facts))  # type: ignore[arg-type]
    world.add_gang("small", 1)
    world.run()
    world.state.set_run_times(history(*run_s))
    return world


def test_gang_starts_when_the_gangs_in_front_have_run_as_long_as_similar_ones() -> None:
    world = full_cluster(*(RUN_S,) * 10)
    found = forecasts(world)
    head, small = found["head"], found["small"]
    assert head.jobs == small.jobs == 100
    assert head.waits_s == (RUN_S - (world.now - START - 3.0),) * SAMPLES, "until the third of them ends"
    assert small.waits_s == (head.waits_s[0] + RUN_S,) * SAMPLES, "the head runs as long as they did"


def test_restartable_gang_starts_on_the_first_reserved_node_that_is_free() -> None:
    found = forecasts(full_cluster(300.0, 3000.0, restartable=True))
    assert found["small"].waits_s[SAMPLES // 2] < found["head"].waits_s[SAMPLES // 2]
    world = full_cluster(300.0, 3000.0, restartable=True)
    world.settings = msgspec.structs.replace(world.settings, policy="strict")
    strict = forecasts(world)
    assert strict["small"].waits_s[SAMPLES // 2] > strict["head"].waits_s[SAMPLES // 2]


def test_backfilled_gang_does_not_delay_the_reserved_one() -> None:
    alone, beside = full_cluster(300.0, 3000.0), full_cluster(300.0, 3000.0, restartable=True)
    assert forecasts(alone)["head"] == forecasts(beside)["head"]


def test_gang_that_runs_backfilled_gives_its_node_back_to_the_reserved_one() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("running", 1)
    world.run()
    world.add_gang("head", 2)
    world.set_job("small", RESTARTABLE)
    world.add_gang("small", 1)
    world.run()
    assert world.placements["default/small"].spec.backfill is not None
    world.state.set_run_times(history(RUN_S))
    found = forecasts(world)
    assert set(found) == {"head"}
    assert found["head"].waits_s[SAMPLES // 2] <= RUN_S, "it does not wait for `small` to end"


def test_time_limits_end_gangs_without_a_history() -> None:
    world = World()
    world.add_nodes("a")
    world.add_gang("running", 1, activeDeadlineSeconds=1000, terminationGracePeriodSeconds=10)
    world.run()
    world.add_gang("waiting", 1)
    world.run()
    found = forecasts(world)["waiting"]
    assert found.jobs == 0
    assert 900 < found.waits_s[0] == found.waits_s[-1] < 1100


def test_without_history_or_limits_there_is_no_forecast() -> None:
    world = full_cluster()
    assert forecasts(world) == {}


def test_gang_that_never_fits_has_no_forecast_and_blocks_no_other() -> None:
    world = full_cluster(RUN_S)
    world.add_gang("huge", 4, priority=10)
    world.run()
    found = forecasts(world)
    assert "huge" not in found
    assert found["head"].waits_s[0] <= RUN_S


def test_only_the_first_gangs_of_the_queue_have_a_forecast() -> None:
    world = full_cluster(RUN_S)
    assert set(forecasts(world, most=1)) == {"head"}


def test_clock_that_was_set_back_counts_no_time_as_run() -> None:
    world = full_cluster(RUN_S)
    world.now = START - 10_000.0
    found = forecasts(world)["head"]
    assert found.waits_s[SAMPLES // 2] == RUN_S


def test_same_snapshot_gives_the_same_forecast() -> None:
    world = full_cluster(300.0, 900.0, 3000.0, restartable=True)
    assert forecasts(world) == forecasts(world)


def started_at(world: World, names: list[str]) -> dict[str, float]:
    """Carry out plans, and end each gang `RUN_S` after its start. Returns the first start of each gang."""
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for _ in range(500):
        world.run(100)
        for name in names:
            if name not in ends and len(world.nodes_of(name)) == world.gang(name).size:
                starts.setdefault(name, world.now)
                ends[name] = world.now + RUN_S
        running = [name for name in ends if ends[name] > world.now]
        if len(ends) == len(names) or not running:
            break
        world.now = min(ends[name] for name in running)
        for name in running:
            if ends[name] == world.now:
                world.set_job(name, JobFacts(ended="Succeeded"))
                world.remove_gang(name)
    return starts


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=9))
def test_simulation_starts_gangs_when_decide_does(sizes: list[int]) -> None:
    """All gangs run equally long, so that the median is exact."""
    world = World()
    world.add_nodes("a", "b", "c", "d")
    names = [f"gang-{chr(97 + at)}" for at in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        world.add_gang(name, size)
    world.state.set_run_times(history(RUN_S, RUN_S, RUN_S))
    found, now = forecasts(world), world.now
    expected = {name: started - now for name, started in started_at(world, names).items()}
    assert {name: found[name].waits_s[SAMPLES // 2] for name in names} == pytest.approx(expected)
    assert all(wait < math.inf for each in found.values() for wait in each.waits_s)
