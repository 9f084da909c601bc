"""Reads the load of an API server from its /metrics, and compares two readings.

The metric families are kube-apiserver's (Kubernetes: metrics reference, stable and beta ones). Replicas behind one
address are distinguished by the start time of their process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

INFLIGHT_MAX = 600
"""kube-apiserver's defaults: --max-requests-inflight 400 and --max-mutating-requests-inflight 200."""
_NO_LATENCY = frozenset({"WATCH", "WATCHLIST", "CONNECT", "LIST"})
"""Long by nature: their duration does not show load."""
_SLOW_SUBRESOURCES = frozenset({"log", "proxy", "exec", "attach", "portforward"})
_LINE = re.compile(
    r"^(apiserver_request_total|apiserver_request_duration_seconds_bucket|apiserver_current_inflight_requests|"
    r"apiserver_flowcontrol_(?:rejected_requests_total|current_inqueue_requests|current_executing_seats|"
    r"nominal_limit_seats)|process_start_time_seconds)(?:\{(.*)\})? (\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Reading(msgspec.Struct, frozen=True):
    """One reading of one replica. Counters start with its process.

    Attributes:
        replica: start time of its process; 0 if not known.
        answered: requests of all kinds except watches.
        refused: requests answered with 429 because of load. An eviction that a PodDisruptionBudget forbids has that
            code too, and does not count.
        buckets: number of requests by upper limit of their duration in seconds, cumulative.
        busy: share of its concurrency limit in use; None if not known.
        queued: requests in its queues.
    """

    replica: float = 0.0
    answered: float = 0.0
    refused: float = 0.0
    buckets: Mapping[float, float] = msgspec.field(default_factory=dict)
    busy: float | None = None
    queued: float = 0.0


class Signals(msgspec.Struct, frozen=True):
    """The load of one replica between two readings, and its current state.

    Attributes:
        answered: requests except watches.
        refused: requests answered with 429.
        p99_s: the 99th percentile of single-object requests; None if there were too few.
        busy: as in Reading.
        queued: as in Reading.
    """

    answered: float = 0.0
    refused: float = 0.0
    p99_s: float | None = None
    busy: float | None = None
    queued: float = 0.0


REQUESTS_MIN = 50
"""With fewer requests, a percentile is not meaningful."""


def read(text: str) -> Reading:
    """Read the needed values from a page of metrics in the Prometheus text format."""
    answered = refused = rejected = queued = inflight = seats = limit = replica = 0.0
    inflight_known = False
    buckets: dict[float, float] = {}
    for name, labels, value in _samples(text):
        if name == "apiserver_request_total":
            if labels.get("verb") not in ("WATCH", "WATCHLIST", "CONNECT"):
                answered += value
            if labels.get("code") == "429" and labels.get("subresource") != "eviction":
                refused += value
        elif name == "apiserver_request_duration_seconds_bucket":
            if labels.get("verb") not in _NO_LATENCY and labels.get("subresource") not in _SLOW_SUBRESOURCES:
                bound = float(labels.get("le", "inf"))
                buckets[bound] = buckets.get(bound, 0.0) + value
        elif name == "apiserver_current_inflight_requests":
            inflight += value
            inflight_known = True
        elif name == "process_start_time_seconds":
            replica = value
        elif name == "apiserver_flowcontrol_rejected_requests_total":
            rejected += value
        elif name == "apiserver_flowcontrol_current_inqueue_requests":
            queued += value
        elif labels.get("priority_level") != "exempt":  # this level has no limit
            if name == "apiserver_flowcontrol_current_executing_seats":
                seats += value
            else:
                limit += value
    busy = seats / limit if limit else inflight / INFLIGHT_MAX if inflight_known else None
    return Reading(replica, answered, max(refused, rejected), buckets, busy, queued)


def between(before: Reading | None, after: Reading) -> Signals:
    """Compare two readings of one replica. Without the first, only the current values are known."""
    if before is None or before.replica != after.replica or after.answered < before.answered:
        return Signals(busy=after.busy, queued=after.queued)
    return Signals(
        answered=after.answered - before.answered,
        refused=max(0.0, after.refused - before.refused),
        p99_s=_p99({bound: count - before.buckets.get(bound, 0.0) for bound, count in after.buckets.items()}),
        busy=after.busy,
        queued=after.queued,
    )


def _p99(buckets: Mapping[float, float]) -> float | None:
    """Return the upper limit of the 99th percentile's bucket; if that is infinite, the largest finite limit."""
    if not buckets:
        return None
    bounds = sorted(buckets)
    total = buckets[bounds[-1]]
    if total < REQUESTS_MIN:
        return None
    finite = [bound for bound in bounds if bound != float("inf")]
    return next((bound for bound in finite if buckets[bound] >= 0.99 * total), finite[-1] if finite else None)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, labels, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, dict(_LABEL.findall(labels)), number
