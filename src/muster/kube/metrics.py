"""Metrics of the client and of every controller's shell."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class OldestAge:
    """Shows the greatest age of several sources with the same label value, such as the watches of a kind."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._ages: defaultdict[str, list[Callable[[], float]]] = defaultdict(list)

    def add(self, label: str, age_s: Callable[[], float]) -> None:
        """Show `age_s` from now on."""
        ages = self._ages[label]
        ages.append(age_s)
        if len(ages) == 1:
            self._gauge.labels(label).set_function(lambda: max((each() for each in ages), default=0.0))

    def remove(self, label: str, age_s: Callable[[], float]) -> None:
        """Stop showing `age_s`. The series ends with its last source."""
        self._ages[label].remove(age_s)
        if not self._ages[label]:
            del self._ages[label]
            self._gauge.remove(label)


class KubeMetrics:
    """Metrics of one registry. Get them with `kube_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "muster_api_requests_total",
            "Requests to the API server, by verb and status.",
            ["verb", "code"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "muster_api_request_duration_seconds",
            "Time from a request to its complete answer.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.retries = Counter(
            "muster_api_retries_total", "Requests that were retried, by reason.", ["verb", "why"], registry=registry
        )
        self.informer_objects = Gauge(
            "muster_informer_objects", "Objects in the cache of an informer.", ["resource"], registry=registry
        )
        self.informer_events = Counter(
            "muster_informer_events_total",
            "Watch events that an informer received.",
            ["resource", "type"],
            registry=registry,
        )
        self.informer_lists = Counter(
            "muster_informer_lists_total", "Complete lists that an informer read.", ["resource"], registry=registry
        )
        self.informer_breaks = Counter(
            "muster_informer_breaks_total",
            "Watches that ended before their timeout.",
            ["resource", "why"],
            registry=registry,
        )
        self.informer_age = OldestAge(
            Gauge(
                "muster_informer_last_progress_seconds",
                "Time since an informer last got an event, bookmark or list.",
                ["resource"],
                registry=registry,
            )
        )
        self.queue_depth = Gauge(
            "muster_queue_depth", "Keys that wait for a worker.", ["controller"], registry=registry
        )
        self.queue_oldest = Gauge(
            "muster_queue_oldest_seconds",
            "Waiting time of the oldest key in the queue.",
            ["controller"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "muster_reconcile_duration_seconds",
            "Duration of a reconcile.",
            ["controller"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "muster_reconcile_errors_total",
            "Reconciles that ended with an error.",
            ["controller", "error"],
            registry=registry,
        )
        self.leading = Gauge("muster_leader", "1 while this process leads, 0 otherwise.", ["lease"], registry=registry)
        self.certificate_end = Gauge(
            "muster_certificate_end_timestamp_seconds",
            "End of validity of a serving certificate that this process keeps in a Secret.",
            ["secret"],
            registry=registry,
        )
        self.events = Counter(
            "muster_events_total",
            "Kubernetes Events that this process sent, by outcome.",
            ["outcome"],
            registry=registry,
        )


_made: weakref.WeakKeyDictionary[CollectorRegistry, KubeMetrics] = weakref.WeakKeyDictionary()


def kube_metrics(registry: CollectorRegistry = REGISTRY) -> KubeMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = KubeMetrics(registry)
    return known
