"""Finds outliers among equal figures of a node's GPUs or of a fleet's nodes, by median and MAD.

It uses the modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers", ASQC 1993), one-sided, with
two changes:

- Their cut-off of 3.5 does not depend on the number of figures, although the MAD of few figures is uncertain. It would
  report one of eight healthy GPUs in 8% of all nodes, and one of 2,048 in 40% of all fleets. Our cut-off reports one in
  1% of healthy groups of any size, if they are normally distributed (`cut_off`).
- If figures agree closely, any deviation is large. So a figure must also be worse by its margin in figures.py.

If more than half are bad, this reports nothing: a median cannot show that, but floors can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import NormalDist, median

import msgspec

from muster.gputest.figures import FIGURES

SAMPLES_MIN = 6
"""With fewer, no outlier is reported: among five healthy figures there would be one in 4% of all groups."""

_MAD_TO_SIGMA = 1.4826


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one component (a GPU's UUID; empty for the node itself) of one model on one node."""

    node: str
    component: str
    model: str
    figure: str
    value: float


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A reading worse than `limit`, which is computed from the `median` of `samples` equal readings."""

    reading: Reading
    median: float
    limit: float
    samples: int


def outliers(readings: Iterable[Reading], *, margin_min: float = 0.0) -> tuple[Outlier, ...]:
    """Return readings that are worse than those of the same model and figure, worst first within each group.

    `margin_min` (a share) replaces smaller margins for noisy figures. Figures that are unknown or have no better
    direction in figures.py are skipped.
    """
    groups: defaultdict[tuple[str, str], list[Reading]] = defaultdict(list)
    for reading in readings:
        spec = FIGURES.get(reading.figure)
        if spec is not None and spec.better:
            groups[reading.model, reading.figure].append(reading)
    found: list[Outlier] = []
    for _, group in sorted(groups.items()):
        found += _worse(group, margin_min)
    return tuple(found)


def cut_off(samples: int) -> float:
    """Return the standard deviations, estimated by the MAD, that one in a hundred healthy groups of this size exceeds.

    It is the quantile of the largest of that many figures, plus a term for the MAD of few figures. The term
    is fitted to 20,000 simulated groups of each size from 6 to 512 and fewer up to 8,192: 0.5% to 1.1%
    exceed it).
    """
    return NormalDist().inv_cdf(1 - 0.01 / samples) + 40 / samples


def _worse(group: list[Reading], margin_min: float) -> list[Outlier]:
    if len(group) < SAMPLES_MIN:
        return []
    spec = FIGURES[group[0].figure]
    sign = 1 if spec.better == "higher" else -1
    middle = median(reading.value for reading in group)
    spread = _MAD_TO_SIGMA * median(abs(reading.value - middle) for reading in group)
    allowed = max(cut_off(len(group)) * spread, max(spec.margin, margin_min) * abs(middle))
    return [
        Outlier(reading=reading, median=middle, limit=middle - sign * allowed, samples=len(group))
        for reading in sorted(group, key=lambda reading: sign * reading.value)
        if sign * (middle - reading.value) > allowed
    ]
