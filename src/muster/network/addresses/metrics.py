"""Metrics of the addresses of this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from muster.kube.described import Described, family
from muster.network.addresses.addresses import PoolStatus
from muster.network.addresses.errors import Reason
from muster.network.addresses.reconcile.plan import Plan, Problem

ADDRESSES: Final = Described(
    "muster_network_addresses", "gauge", ("family", "state"), "Addresses of this node for pods."
)
SHORT: Final = Described(
    "muster_network_addresses_short",
    "gauge",
    ("reason",),
    "1 for the reason why the node has fewer free addresses than it should.",
)
PROBLEMS: Final = Described(
    "muster_network_address_problems",
    "gauge",
    ("problem",),
    "Differences between store, runtime, kernel and provider, by kind: see muster network leaks.",
)
FREED: Final = Described(
    "muster_network_addresses_freed_total", "counter", (), "Leaked attachments that the agent freed since its start."
)
METRICS: Final = (ADDRESSES, SHORT, PROBLEMS, FREED)


class AddressMetrics:
    """A collector for a registry.

    Args:
        status: returns the pool; None while the store is not open.
        plan: returns the newest comparison.
        freed: returns how many attachments were freed.
    """

    def __init__(
        self, status: Callable[[], PoolStatus | None], plan: Callable[[], Plan], freed: Callable[[], int]
    ) -> None:
        self._status = status
        self._plan = plan
        self._freed = freed

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        status = self._status()
        if status is not None:
            states = ("free", "assigned", "cooling", "held", "unused")
            rows = (
                ((name.value, state), getattr(count, state))
                for name, count in status.families.items()
                for state in states
            )
            yield family(ADDRESSES, rows)
            yield family(SHORT, (((reason.value,), int(status.reason is reason)) for reason in Reason))
        seen = Counter(finding.problem for finding in self._plan().findings)
        yield family(PROBLEMS, (((problem.value,), seen[problem]) for problem in Problem))
        yield family(FREED, (((), self._freed()),))

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the registry then does not call `collect` before the store is open."""
        return iter(())
