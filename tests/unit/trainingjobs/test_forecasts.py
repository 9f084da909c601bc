"""When a waiting job is expected to start: what its status says, and how rarely that is written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.training_job_status import StartForecast, StartInterval
from muster.trainingjobs.plan import WriteStatus
from tests.unit.trainingjobs.world import World, make_job, moment


def forecast(world: World, earliest_s: float, latest_s: float | None) -> StartForecast:
    """An estimate made now, with times counted from now."""
    latest = moment(world.now + latest_s) if latest_s is not None else None
    interval = StartInterval(earliest=moment(world.now + earliest_s), latest=latest)
    return StartForecast(interval=interval, probability=0.8, basis="Similar", jobs=40, made_at=moment(world.now))


def waiting() -> World:
    """A job whose pods exist, and that has no nodes."""
    world = World(make_job(2))
    world.control()
    assert world.status.phase == "Pending"
    return world


def writes(world: World) -> int:
    return len([each for each in world.actions(WriteStatus) if each.reason == "Forecast"])


def test_first_estimate_is_written_at_once_and_kept_as_the_first() -> None:
    world = waiting()
    world.forecast = given = forecast(world, 3600, 7200)
    world.control()
    assert world.status.start_forecast == replace(given, first=given.interval)


@pytest.mark.parametrize(
    ("after_s", "earliest_s", "latest_s", "written"),
    [
        (30, 36_000, 72_000, False),
        (590, 36_000, 72_000, False),
        (610, 36_000, 72_000, True),
        (610, 3000, 6600, False),  # it comes nearer as time passes
        (610, 3000, 8000, False),
        (610, 3000, 9000, True),
        (610, 300, 6600, True),
        (610, 3000, None, True),
    ],
)
def test_a_later_estimate_is_written_if_it_is_another_one_and_the_last_is_old(
    after_s: float, earliest_s: float, latest_s: float | None, written: bool
) -> None:
    world = waiting()
    world.forecast = given = forecast(world, 3600, 7200)
    world.control()
    world.now += after_s
    world.forecast = newer = forecast(world, earliest_s, latest_s)
    world.control()
    assert world.status.start_forecast is not None
    assert world.status.start_forecast.first == given.interval
    assert world.status.start_forecast.interval == (newer.interval if written else given.interval)


def test_estimates_that_change_all_the_time_are_written_every_ten_minutes() -> None:
    world = waiting()
    for number in range(240):
        world.forecast = forecast(world, 3600 * (1 + number % 3), 36_000 * (1 + number % 2))
        world.control()
        world.now += 30
    assert 10 <= writes(world) <= 13


def test_an_estimate_follows_the_reason_why_there_is_none() -> None:
    world = waiting()
    world.forecast = StartForecast(unknown="TooFewJobs", jobs=3, made_at=moment(world.now))
    world.control()
    world.now += 700
    world.forecast = replace(world.forecast, jobs=4, made_at=moment(world.now))
    world.control()
    assert writes(world) == 1
    world.forecast = given = forecast(world, 60, 600)
    world.control()
    assert world.status.start_forecast == replace(given, first=given.interval)


def test_the_estimate_goes_when_the_job_gets_nodes_and_does_not_return() -> None:
    world = World(make_job(2))
    world.control()
    world.forecast = forecast(world, 3600, 7200)
    world.control()
    assert world.status.start_forecast is not None
    world.started()
    assert world.status.start_forecast is None
    world.control()
    assert writes(world) == 1


def test_the_estimate_goes_when_the_job_is_suspended() -> None:
    world = waiting()
    world.forecast = forecast(world, 3600, 7200)
    world.control()
    assert world.status.start_forecast is not None
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    for _ in range(5):
        world.control()
        world.step()
    assert world.status.phase == "Suspended"
    assert world.status.start_forecast is None


def test_a_clock_that_was_set_back_does_not_stop_estimates() -> None:
    world = waiting()
    world.forecast = forecast(world, 3600, 7200)
    world.control()
    world.now -= 10_000
    world.forecast = newer = forecast(world, 60, 120)
    world.control()
    assert world.status.start_forecast is not None
    assert world.status.start_forecast.interval == newer.interval


def test_run_seconds_count_every_attempt_without_its_waits() -> None:
    world = World(make_job(2)).started()
    world.now += 100
    world.exit_rank(0, 1)
    world.until("Restarting")
    first_s = world.status.run_seconds
    assert 100 <= first_s <= 110
    world.until("Running")
    world.now += 50
    assert first_s + 50 <= world.status.ran_seconds(world.now) <= first_s + 60
    world.exit_rank(0, 0)
    world.exit_rank(1, 0)
    world.until("Succeeded")
    assert first_s + 50 <= world.status.run_seconds <= first_s + 60
