"""The law of growth is found in noisy samples, and is unknown if they cannot show it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.finding import Growth
from muster.doctor.costs.growth import Sample, fit

LAWS = st.sampled_from(Growth)
RATES = st.floats(1e-3, 1e6)


@st.composite
def node_counts(draw: st.DrawFn, least: int = 3) -> list[int]:
    """Different numbers of nodes, spread over a factor of at least 4."""
    first = draw(st.integers(1, 500))
    steps = draw(st.lists(st.floats(1.3, 3.0), min_size=least - 1, max_size=8))
    counts = [first]
    for step in steps:
        counts.append(max(counts[-1] + 1, round(counts[-1] * step)))
    if counts[-1] < 4 * first:
        counts.append(4 * first + 1)
    return counts


@given(LAWS, RATES, node_counts(), st.integers(0, 2**32))
def test_pure_law_is_found_despite_noise(law: Growth, rate: float, counts: list[int], seed: int) -> None:
    rng = random.Random(seed)
    samples = [Sample(n, rate * n**law.power * rng.uniform(0.96, 1.04)) for n in counts for _ in range(3)]
    fitted = fit(samples)
    assert fitted.growth is law
    for n in counts:
        assert fitted.at(n) == pytest.approx(rate * n**law.power, rel=0.15)


@given(LAWS, RATES, node_counts(), st.integers(0, 2**32))
def test_bursts_in_a_minority_of_windows_do_not_change_the_law(
    law: Growth, rate: float, counts: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    samples = []
    for n in counts:
        burst = rng.randrange(5)
        samples += [Sample(n, rate * n**law.power * (50 if number == burst else 1)) for number in range(5)]
    assert fit(samples).growth is law


@given(RATES, RATES, node_counts(least=5))
def test_square_that_dominates_at_the_largest_size_is_found_behind_a_linear_part(
    square: float, share: float, counts: list[int]
) -> None:
    top = counts[-1]
    linear = square * top * min(share, 1.0)
    fitted = fit([Sample(n, square * n * n + linear * n) for n in counts])
    assert fitted.growth is Growth.PER_NODE_SQUARED
    assert fitted.at(10 * top) == pytest.approx(square * 100 * top * top + linear * 10 * top, rel=0.25)


@given(st.integers(1, 10_000), st.lists(RATES, min_size=1, max_size=50))
def test_samples_of_one_size_never_show_a_law(nodes: int, rates: list[float]) -> None:
    fitted = fit([Sample(nodes, rate) for rate in rates])
    assert fitted.growth is None
    assert f"{nodes:g} nodes" in fitted.reason
    assert math.isnan(fitted.at(7500))


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e9)), max_size=12), st.floats(1e-3, 1e3))
def test_unit_of_the_rate_does_not_matter(samples: list[tuple[float, float]], unit: float) -> None:
    plain = fit([Sample(*each) for each in samples])
    scaled = fit([Sample(n, rate * unit) for n, rate in samples])
    if plain.growth is not None and scaled.growth is not None and plain.at(100) > 1e-6:
        assert scaled.at(100) == pytest.approx(plain.at(100) * unit, rel=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e9)), max_size=12))
def test_more_nodes_never_cost_less(samples: list[tuple[float, float]]) -> None:
    fitted = fit([Sample(*each) for each in samples])
    if fitted.growth is None:
        assert fitted.reason
    else:
        rates = [fitted.at(n) for n in (1, 10, 100, 7500)]
        assert rates == sorted(rates)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e9)), max_size=12), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(samples: list[tuple[float, float]], rng: random.Random) -> None:
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert fit([Sample(*each) for each in shuffled]) == fit([Sample(*each) for each in samples])


def test_noise_as_large_as_the_growth_is_unknown() -> None:
    fitted = fit([Sample(10, 1), Sample(11, 40), Sample(12, 2), Sample(14, 90), Sample(16, 1)])
    assert fitted.growth is None
    assert "vary too much" in fitted.reason


def test_nearly_equal_sizes_are_unknown() -> None:
    fitted = fit([Sample(100, 5.0), Sample(101, 5.2), Sample(110, 6.0)])
    assert fitted.growth is None
    assert "from 100 to 110" in fitted.reason


def test_rate_of_zero_is_constant() -> None:
    assert fit([Sample(10, 0), Sample(20, 0)]).growth is Growth.CONSTANT
