"""Intervals hold as often as promised, also when the simulations are wrong, and they recover from errors."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.scheduler.forecast.calibration import PROBABILITY, Calibration, StartInterval
from muster.scheduler.forecast.starts import SAMPLES

MINUTES = tuple(60.0 * minute for minute in range(1, SAMPLES + 1))


def interval(calibration: Calibration, waits_s: tuple[float, ...] = MINUTES, now: float = 0.0) -> StartInterval:
    found = calibration.interval(waits_s, now)
    assert found is not None
    return found


def outcomes(count: int, factor: float, rng: random.Random, calibration: Calibration) -> tuple[Calibration, float]:
    """Start gangs whose waits are `factor` times what the simulations say; returns the share that held."""
    before = calibration
    for _ in range(count):
        waits_s = tuple(sorted(rng.lognormvariate(8.0, 1.0) for _ in range(SAMPLES)))
        given = interval(calibration, waits_s)
        calibration = calibration.after(given, factor * rng.lognormvariate(8.0, 1.0))
    return calibration, (calibration.held - before.held) / count


def test_new_interval_has_the_quantiles_of_10_and_90_percent() -> None:
    found = interval(Calibration(), now=1000.0)
    assert found.earliest == pytest.approx(1000 + 0.1 * (SAMPLES + 1) * 60)
    assert found.latest == pytest.approx(1000 + 0.9 * (SAMPLES + 1) * 60)


@pytest.mark.parametrize("factor", [0.01, 0.3, 1.0, 3.0, 100.0])
def test_share_that_holds_is_near_the_promise_however_wrong_the_simulations_are(factor: float) -> None:
    rng = random.Random(5)
    learnt, _ = outcomes(500, factor, rng, Calibration())
    _, held = outcomes(1000, factor, rng, learnt)
    assert held == pytest.approx(PROBABILITY, abs=0.03)


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_intervals_recover_when_run_times_change_suddenly(factor: float) -> None:
    rng = random.Random(6)
    learnt, _ = outcomes(500, 1.0, rng, Calibration())
    changed, _ = outcomes(150, factor, rng, learnt)
    changed, held = outcomes(500, factor, rng, changed)
    assert held == pytest.approx(PROBABILITY, abs=0.05)
    back, _ = outcomes(300, 1.0, rng, changed)
    _, held = outcomes(500, 1.0, rng, back)
    assert held == pytest.approx(PROBABILITY, abs=0.05)


def test_start_after_the_interval_widens_later_ones_and_a_start_within_narrows_them() -> None:
    first = interval(Calibration())
    assert first.latest is not None
    late = interval(Calibration().after(first, first.latest + 1))
    early = interval(Calibration().after(first, first.earliest - 1))
    inside = interval(Calibration().after(first, first.latest - 1))
    assert late.latest is not None
    assert inside.latest is not None
    assert inside.latest < first.latest < late.latest
    assert early.earliest < first.earliest < inside.earliest


def test_start_before_the_forecast_was_made_counts_as_early() -> None:
    """The clock was set back between the forecast and the start."""
    given = interval(Calibration(), now=1e9)
    after = Calibration().after(given, 5.0)
    assert (after.outcomes, after.held) == (1, 0)
    assert after.lower < Calibration().lower


def test_end_of_the_interval_is_unknown_if_many_simulations_do_not_start_the_gang() -> None:
    found = interval(Calibration(), (*MINUTES[: SAMPLES - 4], *(math.inf,) * 4))
    assert found.latest is None
    assert found.holds(1e12)
    assert Calibration().interval((math.inf,) * SAMPLES, 0.0) is None
    assert Calibration().interval((), 0.0) is None


LEVELS = st.floats(-7.0, 7.0)
WAITS = st.lists(
    st.one_of(st.floats(0.0, 5e6), st.sampled_from([0.0, 60.0, math.inf])), min_size=SAMPLES, max_size=SAMPLES
).map(lambda waits: tuple(sorted(waits)))


@given(WAITS, LEVELS, LEVELS)
def test_interval_is_finite_in_order_and_not_in_the_past(
    waits_s: tuple[float, ...], lower: float, upper: float
) -> None:
    found = Calibration(lower, upper).interval(waits_s, 1000.0)
    if found is None:
        return
    assert 1000.0 <= found.earliest < math.inf
    assert found.latest is None or found.earliest <= found.latest < math.inf
    assert msgspec.json.decode(msgspec.json.encode(found), type=StartInterval) == found


@given(WAITS, st.lists(st.floats(0.0, 1e7), max_size=50))
def test_calibration_stays_bounded_and_survives_storage(waits_s: tuple[float, ...], starts: list[float]) -> None:
    calibration = Calibration()
    for start in starts:
        given = calibration.interval(waits_s, 0.0)
        if given is not None:
            calibration = calibration.after(given, start)
    assert max(abs(calibration.lower), abs(calibration.upper)) <= 7
    assert calibration.held <= calibration.outcomes <= len(starts)
    assert msgspec.json.decode(msgspec.json.encode(calibration), type=Calibration) == calibration
