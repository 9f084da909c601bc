"""Fits how a rate grows with the number of nodes: constant, per node, or per node squared.

Growth is fitted from few and noisy samples, so it may be unknown; a guess would be worse than no answer.

- Samples with an equal number of nodes count as one sample, their median. So one burst does not decide.
- The errors that are compared are relative, because rates of a small and a large cluster differ by orders of magnitude.
- With two or three different numbers of nodes, only pure laws (a, b*n, c*n^2) are compared. With more, sums are.
- The simplest law that explains the samples nearly as well as the best one wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from muster.api.finding import Growth

SPREAD_MIN: Final = 1.5
"""Least ratio between the largest and the smallest number of nodes. Below it, noise looks like growth."""
_SLACK: Final = 1.5
_ERROR_MIN: Final = 0.03
_RESOLUTION: Final = 0.35
"""The relative error must be below this part of the logarithm of the spread, for a law to be credible."""
_SHARE_MIN: Final = 0.1
"""A term counts only if it makes up this part of the rate at the largest number of nodes."""


def growth_of(power: int) -> Growth:
    """The growth with this power of the number of nodes. Larger powers than 2 count as per node squared."""
    return tuple(Growth)[min(power, 2)]


def words(growth: Growth) -> str:
    """The growth as users read it."""
    return ("constant", "per node", "per node squared")[growth.power]


class Sample(NamedTuple):
    """A rate at a number of nodes; both are positive, the rate may be 0."""

    nodes: float
    rate: float


class Fit(NamedTuple):
    """The fitted growth.

    Attributes:
        growth: None if the samples do not show it.
        coefficients: of 1, n and n squared; all are 0 if `growth` is None.
        reason: why the growth is unknown, "" if it is known.
    """

    growth: Growth | None
    coefficients: tuple[float, float, float]
    reason: str = ""

    def at(self, nodes: float) -> float:
        """The rate at a number of nodes; NaN if the growth is unknown."""
        if self.growth is None:
            return math.nan
        return sum(each * nodes**power for power, each in enumerate(self.coefficients))


def fit(samples: Iterable[Sample]) -> Fit:
    """Fit the growth of a rate. Samples without nodes, or with a rate that is not a number, are ignored."""
    points = _grouped(samples)
    if len(points) < 2:
        return _unknown(
            f"all samples have {points[0].nodes:g} nodes" if points else "there are no samples with a number of nodes"
        )
    spread = points[-1].nodes / points[0].nodes
    if spread < SPREAD_MIN:
        return _unknown(
            f"the number of nodes varies only from {points[0].nodes:g} to {points[-1].nodes:g}; "
            f"a factor of {SPREAD_MIN:g} is needed"
        )
    top = max(point.rate for point in points)
    if top == 0:
        return Fit(Growth.CONSTANT, (0.0, 0.0, 0.0))
    scaled = [Sample(point.nodes / points[-1].nodes, point.rate / top) for point in points]
    chosen = _chosen(scaled, spread)
    if chosen is None:
        return _unknown("the samples vary too much for any law")
    terms, values = chosen
    coefficients = [0.0, 0.0, 0.0]
    for power, value in zip(terms, values, strict=True):
        coefficients[power] = value * top / points[-1].nodes ** power
    return Fit(growth_of(max(terms)), (coefficients[0], coefficients[1], coefficients[2]))


def _unknown(reason: str) -> Fit:
    return Fit(None, (0.0, 0.0, 0.0), reason)


def _grouped(samples: Iterable[Sample]) -> list[Sample]:
    groups: dict[float, list[float]] = {}
    for nodes, rate in samples:
        if nodes > 0 and rate >= 0 and math.isfinite(nodes) and math.isfinite(rate):
            groups.setdefault(nodes, []).append(rate)
    return [Sample(nodes, median(rates)) for nodes, rates in sorted(groups.items())]


def _chosen(points: Sequence[Sample], spread: float) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
    """The simplest law that fits nearly like the best one; None if no law is credible."""
    fits: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = []
    sizes = (1,) if len(points) < 4 else (1, 2, 3)
    for size in sizes:
        for terms in itertools.combinations(range(3), size):
            values = _least_squares(points, terms)
            if values is None or (size > 1 and values[-1] < _SHARE_MIN * sum(values)):
                continue
            freedom = max(len(points) - size, 1)
            fits.append((math.sqrt(_error(points, terms, values) / freedom), terms, values))
    if not fits:
        return None
    best = min(error for error, _, _ in fits)
    if best > _RESOLUTION * math.log(spread):
        return None
    good = [each for each in fits if each[0] <= _SLACK * best + _ERROR_MIN]
    _, terms, values = min(good, key=lambda each: (max(each[1]), len(each[1]), each[0]))
    return terms, values


def _scale(point: Sample) -> float:
    """What an error of this point is relative to; tiny rates are not allowed to dominate."""
    return max(point.rate, 1e-3)


def _error(points: Sequence[Sample], terms: Sequence[int], values: Sequence[float]) -> float:
    return sum(
        (
            (sum(value * point.nodes**power for power, value in zip(terms, values, strict=True)) - point.rate)
            / _scale(point)
        )
        ** 2
        for point in points
    )


def _least_squares(points: Sequence[Sample], terms: Sequence[int]) -> tuple[float, ...] | None:
    """Coefficients with the least relative error; None if one is not positive, so that a smaller law fits better."""
    size = len(terms)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for point in points:
        row = [point.nodes**power / _scale(point) for power in terms]
        want = point.rate / _scale(point)
        for i in range(size):
            for j in range(size):
                matrix[i][j] += row[i] * row[j]
            matrix[i][size] += row[i] * want
    values = _solved(matrix)
    if values is None or any(value <= 0 for value in values):
        return None
    return tuple(values)


def _solved(matrix: list[list[float]]) -> list[float] | None:
    """Solution of a small linear system, by elimination with pivots; None if it is singular."""
    size = len(matrix)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                for at in range(column, size + 1):
                    matrix[row][at] -= factor * matrix[column][at]
    return [matrix[row][size] / matrix[row][row] for row in range(size)]
