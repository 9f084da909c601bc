"""Which of many like figures are worse than the rest: median and MAD, for the GPUs of a node or the nodes of a fleet.

The modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers", ASQC 1993), one-sided, with two
changes. Their cut-off of 3.5, whatever the number, would call one of eight healthy GPUs bad in 8% of all nodes, since
the MAD of few figures is itself uncertain, and one of 2,048 in 40% of all fleets. Ours accuses somebody in 1% of
healthy groups, small or large, if they are normally distributed (`cut_off`). And figures that agree closely make any
deviation large: a figure must also be worse by the margin that figures.py gives it. Where more than half are bad
nobody is called: a median cannot see that, floors can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import NormalDist, median

import msgspec

from muster.gputest.figures import FIGURES

SAMPLES_MIN = 6
"""With fewer nobody is called: of five healthy figures one would be in 4% of all groups."""

_MAD_TO_SIGMA = 1.4826


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one component (a GPU's UUID; empty for the node's own) of one model on one node."""

    node: str
    component: str
    model: str
    figure: str
    value: float


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A reading that is worse than `limit`, which follows from the `median` of `samples` like readings."""

    reading: Reading
    median: float
    limit: float
    samples: int


def outliers(readings: Iterable[Reading], *, margin_min: float = 0.0) -> tuple[Outlier, ...]:
    """The readings that are worse than those of the same model and figure, worst first within each group.

    `margin_min` (a share) replaces smaller margins, where figures are known to be noisy. Figures that
    figures.py does not know, or knows no better direction of, are passed over.
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
    """Standard deviations, as the MAD estimates them, that one in a hundred healthy groups of this size exceeds.

    The quantile of the largest of so many, and what the MAD of few adds to it (fitted to 20,000 simulated groups of
    each size from 6 to 512 and fewer up to 8,192: 0.5% to 1.1% exceed it).
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
