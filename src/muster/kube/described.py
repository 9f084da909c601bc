"""Metrics that are read from the parts of a process when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Described(NamedTuple):
    """A metric: its name, its type (counter or gauge), its labels, and its meaning for the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def family(metric: Described, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """Return a metric with its samples: the values of the labels, and the value."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # the agent saves its memory

    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made
