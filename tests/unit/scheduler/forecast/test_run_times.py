"""Predictions of run times from the history: which jobs count, what the time already run means, and heavy tails."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import ENOUGH, RECORDS_MAX, EndedRun, Remaining, RunTimes
from tests.unit.scheduler.world import World

ADA = Likeness("lab", "vision", "ada", "train", "repo/train", nodes=2, gpus=8)
BOB = Likeness("lab", "vision", "bob", "eval", "repo/eval", nodes=2, gpus=8)


def ended(run_s: float, likeness: Likeness = ADA, *, completed: bool = True, at: float = 0.0) -> EndedRun:
    return EndedRun(likeness, run_s, completed, at)


def remaining(model: RunTimes, ran_s: float = 0.0, likeness: Likeness = ADA) -> Remaining:
    found = model.remaining(likeness, ran_s)
    assert found is not None
    return found


@pytest.mark.parametrize("records", [0, 1, ENOUGH - 1])
def test_too_few_records_predict_nothing(records: int) -> None:
    assert RunTimes(ended(60.0) for _ in range(records)).remaining(ADA, 0.0) is None


def test_records_of_jobs_that_were_stopped_alone_predict_nothing() -> None:
    assert RunTimes(ended(60.0, completed=False) for _ in range(100)).remaining(ADA, 0.0) is None


def test_quantiles_are_those_of_the_similar_jobs() -> None:
    model = RunTimes(ended(60.0 * minute) for minute in range(1, 100))
    found = remaining(model)
    assert (found.jobs, found.basis) == (99, "Similar")
    assert found.quantile(0.5) == pytest.approx(50 * 60, abs=60)
    assert found.quantile(0.9) == pytest.approx(90 * 60, abs=60)


def test_time_already_run_rules_out_shorter_jobs() -> None:
    model = RunTimes([ended(60.0) for _ in range(90)] + [ended(36_000.0) for _ in range(30)])
    assert remaining(model).quantile(0.5) == 60.0
    assert remaining(model, 61.0).quantile(0.5) == 36_000.0 - 61.0


def test_identical_run_times_give_that_time() -> None:
    found = remaining(RunTimes(ended(3600.0) for _ in range(50)), 600.0)
    assert found.quantile(0.1) == found.quantile(0.9) == 3000.0


def test_beyond_the_longest_record_the_remaining_time_grows_with_the_time_run() -> None:
    model = RunTimes(ended(60.0 * minute) for minute in range(1, 100))
    day, week = remaining(model, 86_400.0), remaining(model, 7 * 86_400.0)
    assert 0.3 * 86_400 < day.quantile(0.5) <= 3 * 86_400
    assert week.quantile(0.5) == pytest.approx(7 * day.quantile(0.5))


def test_last_quantile_is_unknown_because_no_history_is_a_limit() -> None:
    assert remaining(RunTimes(ended(60.0) for _ in range(50))).quantile(1.0) == math.inf


@pytest.mark.parametrize(
    ("likeness", "basis", "expected_s"),
    [
        (ADA, "Similar", 100.0),
        (Likeness("lab", "vision", "ada", "train", "repo/other", nodes=2, gpus=8), "Similar", 100.0),
        (Likeness("lab", "vision", "ada", "new", "", nodes=2, gpus=8), "User", 100.0),
        (Likeness("lab", "vision", "ada", "new", "", nodes=9, gpus=8), "User", 100.0),
        (Likeness("lab", "vision", "eve", "new", "", nodes=2, gpus=8), "Team", 200.0),
        (Likeness("lab", "speech", "eve", "new", "", nodes=2, gpus=8), "Shape", 200.0),
        (Likeness("lab", "speech", "eve", "new", "", nodes=3, gpus=8), "Cluster", 300.0),
    ],
)
def test_most_specific_group_with_enough_jobs_is_used(likeness: Likeness, basis: str, expected_s: float) -> None:
    others = Likeness("lab", "speech", "dan", "big", "", nodes=30, gpus=8)
    model = RunTimes(
        [ended(100.0) for _ in range(20)]
        + [ended(200.0, BOB) for _ in range(60)]
        + [ended(300.0, others) for _ in range(200)]
        + [ended(9.0, likeness) for _ in range(ENOUGH - 1) if likeness != ADA]
    )
    found = remaining(model, likeness=likeness)
    assert (found.basis, found.quantile(0.5)) == (basis, expected_s)


def test_wider_group_is_used_when_no_similar_job_ran_so_long() -> None:
    model = RunTimes([ended(60.0) for _ in range(50)] + [ended(7200.0, BOB) for _ in range(50)])
    found = remaining(model, 3600.0)
    assert (found.basis, found.quantile(0.5)) == ("Team", 3600.0)


def test_stopped_and_running_jobs_count_as_lower_bounds() -> None:
    """Half of the jobs are stopped at a random moment. The estimate is the same as without that."""
    rng = random.Random(7)
    times = [rng.lognormvariate(8.0, 1.5) for _ in range(2000)]
    seen = [(time_s, rng.expovariate(1 / 4000.0)) for time_s in times]
    stopped = [ended(min(time_s, stop_s), completed=time_s <= stop_s) for time_s, stop_s in seen]
    assert 0.3 < sum(record.completed for record in stopped) / len(stopped) < 0.7
    for q in (0.25, 0.5):
        truth = sorted(times)[int(q * len(times))]
        assert remaining(RunTimes(stopped)).quantile(q) == pytest.approx(truth, rel=0.15)
    with_running = RunTimes(stopped[:1000], running=stopped[1000:])
    assert remaining(with_running).quantile(0.5) == pytest.approx(median(times), rel=0.15)


@pytest.mark.slow
def test_one_more_job_falls_into_the_interval_as_often_as_promised() -> None:
    rng = random.Random(11)
    held = 0
    for _ in range(2000):
        run_s = [rng.lognormvariate(6.0, 2.0) for _ in range(30)]
        found = remaining(RunTimes(ended(each) for each in run_s[1:]))
        held += found.quantile(0.1) <= run_s[0] <= found.quantile(0.9)
    assert 0.78 <= held / 2000 <= 0.86


def test_only_the_newest_records_count() -> None:
    old = [ended(10.0, at=1.0) for _ in range(RECORDS_MAX)]
    new = [ended(5000.0, at=2.0) for _ in range(RECORDS_MAX)]
    model = RunTimes(new + old)
    assert model.records == RECORDS_MAX
    assert remaining(model).quantile(0.01) == 5000.0


def test_snapshot_has_the_model_that_was_set() -> None:
    world = World()
    assert world.state.snapshot().run_times.records == 0
    model = RunTimes([ended(1.0)])
    world.state.set_run_times(model)
    assert world.state.snapshot().run_times is model
    assert world.state.run_times is model


RECORDS = st.lists(
    st.builds(
        EndedRun,
        st.sampled_from([ADA, BOB]),
        st.one_of(st.floats(-10.0, 1e9), st.sampled_from([0.0, 60.0, math.inf, math.nan])),
        st.booleans(),
        st.floats(0.0, 2e9),
    ),
    max_size=60,
)
ELAPSED = st.one_of(st.floats(-1e9, 1e12), st.sampled_from([0.0, 60.0]))


@given(RECORDS, ELAPSED, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9))
def test_quantiles_are_never_negative_and_never_fall(
    records: list[EndedRun], ran_s: float, levels: list[float]
) -> None:
    found = RunTimes(records).remaining(ADA, ran_s)
    if found is None:
        return
    quantiles = [found.quantile(q) for q in sorted(levels)]
    assert quantiles[0] >= 0.0
    assert quantiles == sorted(quantiles)
    assert not any(math.isnan(each) for each in quantiles)


@given(RECORDS, ELAPSED, st.randoms(use_true_random=False))
def test_order_of_the_records_does_not_matter(records: list[EndedRun], ran_s: float, rng: random.Random) -> None:
    def quantiles(given: list[EndedRun]) -> list[float]:
        found = RunTimes(given).remaining(BOB, ran_s)
        return [found.quantile(q / 10) for q in range(10)] if found is not None else []

    shuffled = list(records)
    rng.shuffle(shuffled)
    assert quantiles(shuffled) == quantiles(records)
