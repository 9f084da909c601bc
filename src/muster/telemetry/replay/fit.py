"""Fits the coefficients of the model to measured replays: non-negative least squares of relative errors.

A calibration measures few logs, and some costs look alike in them. Where the errors of the fit show that noise would
decide, the ratios of the costs stay near those of the built-in ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from operator import mul
from typing import Final

import msgspec

from muster.telemetry.replay.defaults import DEFAULT
from muster.telemetry.replay.model import Coefficients, ReplaySize, memory_work, time_work, total

FIXED_S: Final = 0.01
"""Time of a replay of 100 series, measured on 2.42 and 3.16. It is not fitted: it would take up the cost of samples in
small logs, and logs with many samples would then be predicted too low."""
_LEAST_S: Final = 1e-3
_SPREAD: Final = 0.3
"""By which share the costs of machines and versions differ from the built-in ones, apart from a common factor."""


class Run(msgspec.Struct, frozen=True):
    """A measured replay.

    Attributes:
        size: what was replayed.
        cores: that the server had.
        time_s: `prometheus_tsdb_data_replay_duration_seconds` of the server.
        peak_memory_bytes: peak of its resident memory until it was ready.
    """

    size: ReplaySize
    cores: float
    time_s: float
    peak_memory_bytes: float


def fit(runs: Sequence[Run]) -> Coefficients:
    """Return the coefficients with small relative errors, near the built-in ones. Raises ValueError without runs."""
    if not runs:
        raise ValueError("no replay was measured")
    work = [time_work(run.size, run.cores) for run in runs]
    variable_s = [max(run.time_s - FIXED_S * own[0], _LEAST_S) for run, own in zip(runs, work, strict=True)]
    known = msgspec.structs.astuple(DEFAULT)
    time = _near(known[1 : len(work[0])], [own[1:] for own in work], variable_s)
    memory = _near(
        known[len(work[0]) :], [memory_work(run.size) for run in runs], [run.peak_memory_bytes for run in runs]
    )
    return Coefficients(FIXED_S, *time, *memory)


def _near(known: Sequence[float], rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Return factors as `non_negative` does, near a multiple of the known ones as far as the errors are noise.

    The known ones weigh as much as the variance of the errors, divided by that of the costs (ridge regression).
    """
    free = non_negative(rows, wanted)
    errors = sum((total(free, row) / want - 1) ** 2 for row, want in zip(rows, wanted, strict=True))
    spare = max(len(rows) - sum(1 for factor in free if factor), 1)
    weight = min(errors / spare / _SPREAD**2, _WEIGHT_MOST)
    if weight < _WEIGHT_LEAST:
        return free
    ratios = [total(known, row) / want for row, want in zip(rows, wanted, strict=True)]
    scale = sum(ratios) / sum(ratio * ratio for ratio in ratios)
    near = [[float(i == column) for i in range(len(known))] for column in range(len(known))]
    weights = [1.0] * len(rows) + [weight] * len(known)
    return non_negative([*rows, *near], [*wanted, *(scale * each for each in known)], weights)


_WEIGHT_LEAST, _WEIGHT_MOST = 1e-6, 0.1
"""Without noise the fit is exact. With much of it, a machine whose costs have other ratios must still be recognised."""


def non_negative(
    rows: Sequence[Sequence[float]], wanted: Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """Return factors >= 0 of the columns, so that the sums of each row come close to the wanted ones.

    The squares of the relative errors, times their weights, are as small as possible. All subsets of the columns are
    tried: there are few.
    """
    width = len(rows[0])
    relative = [[value / want for value in row] for row, want in zip(rows, wanted, strict=True)]
    units = [max(abs(row[column]) for row in relative) or 1.0 for column in range(width)]
    scaled = [[value / unit for value, unit in zip(row, units, strict=True)] for row in relative]
    weights = weights or [1.0] * len(rows)
    # The equations of a subset are some of those of all columns.
    every = _equations(scaled, weights)
    best, least = [0.0] * width, sum(weights)
    for number in range(1, width + 1):
        for columns in combinations(range(width), number):
            found = _solved([[every[i][j] for j in (*columns, width)] for i in columns])
            if found is None or min(found) < 0:
                continue
            error = sum(
                weight * (sum(row[column] * factor for column, factor in zip(columns, found, strict=True)) - 1) ** 2
                for row, weight in zip(scaled, weights, strict=True)
            )
            # More columns must improve the fit clearly, or noise would decide between columns that look alike.
            if error < least * (1 - _GAIN_LEAST):
                least = error
                best = [0.0] * width
                for column, factor in zip(columns, found, strict=True):
                    best[column] = factor / units[column]
    return best


_GAIN_LEAST = 1e-6


def _equations(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[list[float]]:
    """Return the normal equations of sums of rows that shall be 1; the last column is the right side."""
    weighted = [[weight * value for value in row] for row, weight in zip(rows, weights, strict=True)]
    return [
        [sum(map(mul, first, second)) for second in (*zip(*rows, strict=True), [1.0] * len(rows))]
        for first in zip(*weighted, strict=True)
    ]


def _solved(matrix: list[list[float]]) -> list[float] | None:
    """Return the solution of linear equations; None if they do not determine one. Changes the matrix."""
    width = len(matrix)
    for i in range(width):
        pivot = max(range(i, width), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < _SINGULAR:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        own = matrix[i]
        for j in range(i + 1, width):
            factor = matrix[j][i] / own[i]
            matrix[j] = [a - factor * b for a, b in zip(matrix[j], own, strict=True)]
    found = [0.0] * width
    for i in reversed(range(width)):
        found[i] = (matrix[i][width] - sum(map(mul, matrix[i][i + 1 : width], found[i + 1 :]))) / matrix[i][i]
    return found


_SINGULAR = 1e-9
