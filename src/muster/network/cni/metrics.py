"""Metrics of the CNI daemon."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram

from muster.network.cni.answers import Answer
from muster.network.cni.invocation import Invocation

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_COMMANDS: Final = frozenset(("ADD", "DEL", "CHECK", "GC", "STATUS"))


class CniMetrics:
    """Metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "muster_network_cni_request_seconds",
            "How long requests of the container runtime to the CNI daemon took. result is ok or failed.",
            ["command", "result"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.ready = Gauge(
            "muster_network_cni_ready",
            "1 if pods of this node get a network; 0: the page pods of the agent says why not.",
            registry=registry,
        )

    def timed(self, handle: Callable[[Invocation], Answer]) -> Callable[[Invocation], Answer]:
        """Return a function that answers as `handle` does, and records how long it took."""

        def answer(invocation: Invocation) -> Answer:
            began_s = time.monotonic()
            answered = handle(invocation)
            command = invocation.document.command if invocation.document.command in _COMMANDS else "other"
            result = "ok" if answered.exit_code == 0 else "failed"
            self._seconds.labels(command, result).observe(time.monotonic() - began_s)
            return answered

        return answer
