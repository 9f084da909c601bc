"""Metrics of the webhook."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class AdmissionMetrics:
    """Metrics of one registry; create them once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "muster_admission_requests_total",
            "Admission requests that the webhook answered, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "muster_admission_duration_seconds",
            "Time from the last byte of an admission request to the answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.certificate_end = Gauge(
            "muster_admission_certificate_end_timestamp_seconds",
            "End of validity of the serving certificate.",
            registry=registry,
        )
