"""Who is called slow among many: never who is near the others, always who is far."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.gputest.outliers import SAMPLES_MIN, Reading, outliers

FIGURE = "host_to_device_gb_per_s"  # higher is better, margin 10%


def readings(values: list[float], figure: str = FIGURE, model: str = "m") -> list[Reading]:
    return [
        Reading(node=f"n{place}", component="", model=model, figure=figure, value=value)
        for place, value in enumerate(values)
    ]


def called(values: list[float], figure: str = FIGURE) -> list[str]:
    return [found.reading.node for found in outliers(readings(values, figure))]


def test_one_far_below_the_others_is_called_with_its_limit() -> None:
    (found,) = outliers(readings([55.0, 55.2, 54.9, 55.1, 55.0, 41.0, 55.3, 54.8]))
    assert found.reading.node == "n5"
    assert (found.samples, found.median) == (8, 55.0)
    assert 41 < found.limit <= 55 * 0.9


def test_one_far_above_is_not_slow() -> None:
    assert called([55.0, 55.2, 54.9, 55.1, 55.0, 90.0, 55.3, 54.8]) == []


def test_of_temperatures_the_high_one_is_worse() -> None:
    assert called([60.0, 61.0, 60.0, 59.0, 60.0, 20.0, 95.0, 60.0], "temperature_max_c") == ["n6"]


def test_where_all_others_are_equal_the_margin_decides() -> None:
    assert called([50.0] * 7 + [44.0]) == ["n7"]
    assert called([50.0] * 7 + [46.0]) == []


def test_a_wide_margin_is_asked_for_where_timing_is_uncertain() -> None:
    few = readings([50.0] * 7 + [20.0, 4.0])
    assert [found.reading.node for found in outliers(few, margin_min=0.9)] == ["n8"]


def test_models_and_figures_are_compared_with_their_own_kind() -> None:
    slow = readings([25.0] * 6, model="a100")
    fast = readings([55.0] * 6, model="h100")
    assert outliers([*slow, *fast, *readings([700.0] * 6 + [300.0], "sustained_power_w")]) == ()


@given(st.lists(st.floats(1, 100), max_size=5))
def test_few_never_make_an_outlier(values: list[float]) -> None:
    assert called(values) == []


@given(st.floats(1, 1000), st.lists(st.floats(-0.04, 0.04), min_size=SAMPLES_MIN, max_size=200))
def test_no_figure_within_the_margin_is_an_outlier(middle: float, offs: list[float]) -> None:
    assert called([middle * (1 + off) for off in offs]) == []


@st.composite
def groups(draw: st.DrawFn) -> list[float]:
    """Values near 50, and at most a fourth as many of at most 10."""
    bad = draw(st.lists(st.floats(0, 10), min_size=1, max_size=15))
    good = draw(st.lists(st.floats(49, 51), min_size=max(SAMPLES_MIN, 4 * len(bad)), max_size=60))
    return draw(st.permutations(good + bad))


@settings(max_examples=30)
@given(groups())
def test_no_distant_outlier_hides_among_many_others(values: list[float]) -> None:
    assert sorted(called(values)) == sorted(f"n{place}" for place, value in enumerate(values) if value <= 10)


@pytest.mark.parametrize(("samples", "rate_max"), [(6, 0.02), (8, 0.02), (16, 0.02), (64, 0.02), (512, 0.02)])
def test_healthy_groups_are_seldom_accused(samples: int, rate_max: float) -> None:
    """Even of figures that spread by more than their margin: 15% of the median, normally distributed."""
    source = random.Random(samples)
    groups = 1000 if samples < 100 else 150
    accused = sum(bool(called([source.gauss(100, 15) for _ in range(samples)])) for _ in range(groups))
    assert accused <= rate_max * groups
