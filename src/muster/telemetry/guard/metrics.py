"""Metrics of the guard."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from muster.kube.described import Described, family
from muster.telemetry.guard.serving.records import REFUSALS, UNKNOWN, Record

if TYPE_CHECKING:
    from muster.telemetry.guard.serving.server import Server

CONNECTIONS: Final = Described("muster_guard_connections", "gauge", (), "Open connections of clients.")
REFUSED: Final = Described(
    "muster_guard_refused_connections_total",
    "counter",
    (),
    "Connections that were closed at once because there were too many.",
)
INVALID: Final = Described("muster_guard_invalid_requests_total", "counter", (), "Requests that were not valid HTTP.")
SERVER_METRICS: Final = (CONNECTIONS, REFUSED, INVALID)

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GuardMetrics:
    """Metrics of one registry. The label `caller` has only names from the configuration."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "muster_guard_requests_total",
            "Requests of clients that ended, by kind of request and outcome.",
            ["endpoint", "caller", "outcome"],
            registry=registry,
        )
        self.refusals = Counter(
            "muster_guard_refusals_total",
            "Requests that exceed a limit or a budget. With `allowed`, they were sent although they do.",
            ["endpoint", "caller", "reason", "allowed"],
            registry=registry,
        )
        self.seconds = Histogram(
            "muster_guard_request_duration_seconds",
            "Time from the head of a request to the end of its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.added_seconds = Histogram(
            "muster_guard_added_seconds",
            "Time until a request was sent to Prometheus, without waiting for a budget.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waited_seconds = Histogram(
            "muster_guard_budget_wait_seconds",
            "Time that requests waited for a budget.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.bytes = Counter(
            "muster_guard_answer_bytes_total",
            "Bytes of answers that were sent to clients.",
            ["endpoint"],
            registry=registry,
        )
        self.shared = Counter(
            "muster_guard_shared_requests_total",
            "Requests that got the answer of an equal request in flight.",
            ["endpoint"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "muster_guard_upstream_requests_in_flight", "Requests to Prometheus that run.", registry=registry
        )

        # Looking up the child of a metric costs more than counting in it. The configuration bounds their number.
        self._requests = cache(self.requests.labels)
        self._seconds = cache(self.seconds.labels)
        self._added_seconds = cache(self.added_seconds.labels)
        self._bytes = cache(self.bytes.labels)

    def count(self, record: Record, duration_s: float) -> None:
        """Count a request that ended.

        Args:
            record: the request.
            duration_s: since its head.
        """
        endpoint, caller = record.endpoint, record.caller.label if record.caller is not None else UNKNOWN
        self._requests(endpoint, caller, record.outcome).inc()
        self._seconds(endpoint).observe(duration_s)
        if record.added_s is not None:
            self._added_seconds(endpoint).observe(record.added_s)
        if record.waited_s is not None:
            self.waited_seconds.observe(record.waited_s)
        if record.reason:
            allowed = "false" if record.outcome in REFUSALS else "true"
            self.refusals.labels(endpoint, caller, record.reason, allowed).inc()
        if record.shared:
            self.shared.labels(endpoint).inc()
        if record.bytes:
            self._bytes(endpoint).inc(record.bytes)


class ServerMetrics(Collector):
    """The connections of clients."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield family(CONNECTIONS, [((), float(self._server.connections))])
        yield family(REFUSED, [((), float(self._server.refused_connections))])
        yield family(INVALID, [((), float(self._server.invalid_requests))])
