"""Metrics of the network agent itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from muster.kube.described import Described, family
from muster.network.localpods.follow import FollowedPods

PODS: Final = Described("muster_network_pods", "gauge", (), "Pods of this node that the network agent knows.")
CONTACT: Final = Described(
    "muster_network_api_contact_age_seconds",
    "gauge",
    (),
    "Seconds since the network agent heard from the API server. It works without; -1 if it has not since its start.",
)
SAVE_FAILURES: Final = Described(
    "muster_network_pods_save_failures_total", "counter", (), "Writes of the node's pods to its disk that failed."
)
METRICS: Final = (PODS, CONTACT, SAVE_FAILURES)


class AgentMetrics:
    """A collector for a registry."""

    def __init__(self, pods: FollowedPods) -> None:
        self._pods = pods

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        contact_s = self._pods.contact_s
        yield family(PODS, (((), len(self._pods.pods)),))
        yield family(CONTACT, (((), asyncio.get_running_loop().time() - contact_s if contact_s else -1.0),))
        yield family(SAVE_FAILURES, (((), self._pods.save_failures),))

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the registry then does not call `collect` before the event loop runs."""
        return iter(())
