"""Decides with what a metric, label or job grows: from earlier times, names of labels, and numbers of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

import msgspec

from muster.telemetry.cardinality.evidence import Job, Label, Metric, Population
from muster.telemetry.cardinality.labels import NODE, NODE_PREFIXES, PEER, POD, POD_PREFIXES, TARGET

With = Literal["", "nodes", "pods", "targets"]
Basis = Literal["", "earlier times", "name of a label", "number of values", "targets", "name of the metric"]

_NAMES: Final[tuple[tuple[frozenset[str], With], ...]] = ((POD, "pods"), (NODE, "nodes"))
_PREFIXES: Final[tuple[tuple[tuple[str, ...], With], ...]] = ((POD_PREFIXES, "pods"), (NODE_PREFIXES, "nodes"))
_SPREAD_LEAST: Final = 1.5
"""Least ratio between the most and fewest nodes. Below it, noise looks like growth."""
_POINTS_LEAST: Final = 3
_CREDIBLE: Final = 0.35
_SHARE: Final = 0.5
"""A label or job follows the nodes if it has at least this many values or targets for each."""
_SAME: Final = 0.95
"""A label without a known name follows the nodes or pods only if it has nearly as many values: else it is chance."""
_MANY: Final = 10
_PAIRS_SHARE: Final = 0.3
_PAIR_VALUES_LEAST: Final = 5


class Growth(msgspec.Struct, frozen=True):
    """How something grows.

    Attributes:
        power: 0: it does not. 1: as the nodes or pods. 2: as their square.
        grows_with: nodes, pods or targets; empty if it does not grow.
        basis: the evidence.
        labels: which make it grow.
    """

    power: int = 0
    grows_with: With = ""
    basis: Basis = ""
    labels: tuple[str, ...] = ()

    def times(self, factor: float) -> float:
        """Return how many times as large it is in a cluster that is `factor` times as large."""
        return factor**self.power


def metric_growth(metric: Metric, jobs: Mapping[str, Job], population: Population) -> Growth:
    """Return how the series of a metric grow. Measured growth counts more than names."""
    by_labels = _by_labels(metric, jobs, population)
    power = _measured_power(metric.history)
    if power is None:
        return by_labels
    if power == 0:
        return Growth(basis="earlier times")
    return Growth(power, by_labels.grows_with or "nodes", "earlier times", by_labels.labels)


def label_growth(label: Label, population: Population) -> Growth:
    """Return how the number of values of a label grows."""
    if label.name in POD:
        return Growth(1, "pods", "name of a label", (label.name,))
    if label.name in NODE:
        return Growth(1, "nodes", "name of a label", (label.name,))
    return _by_values(label.name, label.values, population)


def job_growth(job: Job, population: Population) -> Growth:
    """Return how the number of a job's targets grows."""
    if population.nodes >= _MANY and _near(job.targets, population.nodes):
        return Growth(1, "nodes", "targets", (TARGET,))
    if population.pods >= _MANY and job.targets >= _SHARE * population.pods:
        return Growth(1, "pods", "targets", (TARGET,))
    if job.targets >= max(_MANY, _SHARE * population.nodes):
        return Growth(1, "targets", "targets", (TARGET,))
    return Growth()


def _measured_power(history: Sequence[tuple[float, float]]) -> int | None:
    """Return the power of growth at earlier times; None if they do not show it."""
    points = sorted((nodes, series) for nodes, series in history if nodes > 0 and series > 0)
    if len(points) < _POINTS_LEAST or points[-1][0] < _SPREAD_LEAST * points[0][0]:
        return None
    xs = [math.log(nodes) for nodes, _ in points]
    ys = [math.log(series) for _, series in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)
    power = min(max(round(slope), 0), 2)
    return power if abs(slope - power) <= _CREDIBLE else None


def _by_labels(metric: Metric, jobs: Mapping[str, Job], population: Population) -> Growth:
    squared = _squared(metric, population)
    if squared is not None:
        return squared
    labels = metric.labels
    for names, what in _NAMES:
        found = tuple(sorted(each for each in labels if each in names and metric.distinct.get(each, 2) > 1))
        if found:
            return Growth(1, what, "name of a label", found)
    for name, values in metric.distinct.items():
        grown = _by_values(name, values, population)
        if grown.power and name != TARGET:
            return grown
    grown = max(
        (job_growth(jobs[each], population) for each in metric.jobs if each in jobs), key=_power, default=Growth()
    )
    if grown.power:
        return grown
    if not labels:
        for prefixes, what in _PREFIXES:
            if metric.name.startswith(prefixes):
                return Growth(1, what, "name of the metric")
    return Growth()


def _power(growth: Growth) -> int:
    return growth.power


def _squared(metric: Metric, population: Population) -> Growth | None:
    """Return the growth of a metric with series for pairs of nodes; None if it has none."""
    # The label `instance` often repeats another label, which says more.
    for a, b in combinations(sorted(metric.distinct, key=lambda label: (label == TARGET, label)), 2):
        pairs = metric.pairs.get(",".join(sorted((a, b))), 0)
        first, second = metric.distinct[a], metric.distinct[b]
        many = min(first, second) >= _PAIR_VALUES_LEAST
        if (
            many
            and pairs >= _PAIRS_SHARE * first * second
            and all(_may_be_nodes(x, metric, population) for x in (a, b))
        ):
            return Growth(2, "nodes", "number of values", (a, b))
    return None


def _may_be_nodes(label: str, metric: Metric, population: Population) -> bool:
    if label in NODE | POD | PEER | {TARGET}:
        return True
    return population.nodes >= _MANY and _near(metric.distinct[label], population.nodes)


def _by_values(name: str, values: int, population: Population) -> Growth:
    share = _SHARE if name == TARGET or name in PEER else _SAME
    if population.nodes >= _MANY and share <= values / population.nodes <= 1 / share:
        return Growth(1, "nodes", "number of values", (name,))
    if population.pods >= _MANY and share <= values / population.pods <= 1 / share:
        return Growth(1, "pods", "number of values", (name,))
    return Growth()


def _near(number: int, of: int) -> bool:
    """Return whether a number may be that of the nodes or pods: some may be missing, and a few be of the past."""
    return _SHARE * of <= number <= of / _SHARE
