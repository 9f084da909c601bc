"""Metrics of the part `tuning`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from muster.kube.described import Described, family

SETTINGS: Final = Described(
    "muster_network_tuning_settings", "gauge", (), "Kernel settings of this node that the agent has changed."
)
PROBLEMS: Final = Described(
    "muster_network_tuning_problems",
    "gauge",
    (),
    "Kernel settings that could not be written, or that another program changed after the agent.",
)
METRICS: Final = (SETTINGS, PROBLEMS)


class TuningMetrics:
    """A collector for a registry.

    Args:
        counts: returns the number of changed settings, and of problems.
    """

    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        for metric, value in zip(METRICS, self._counts(), strict=True):
            yield family(metric, (((), value),))
