"""What an API server says of its own load: read from its /metrics, compared between two readings.

Families are kube-apiserver's (Kubernetes: metrics reference, stable and beta ones). Counters of several replicas behind
one address are told apart by the start time of their process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

INFLIGHT_MAX = 600
"""kube-apiserver's defaults: --max-requests-inflight 400 and --max-mutating-requests-inflight 200."""
_NO_LATENCY = frozenset({"WATCH", "WATCHLIST", "CONNECT", "LIST"})
"""Long by nature: their time says nothing about load."""
_SLOW_SUBRESOURCES = frozenset({"log", "proxy", "exec", "attach", "portforward"})
_LINE = re.compile(
    r"^(apiserver_request_total|apiserver_request_duration_seconds_bucket|apiserver_current_inflight_requests|"
    r"apiserver_flowcontrol_(?:rejected_requests_total|current_inqueue_requests|current_executing_seats|"
    r"nominal_limit_seats)|process_start_time_seconds)(?:\{(.*)\})? (\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Reading(msgspec.Struct, frozen=True):
    """One look at one replica; counters since its process began.

    Attributes:
        replica: start time of its process, 0 where it does not say.
        answered: requests of all kinds but watches.
        refused: requests answered 429 for its own sake. An eviction that a PodDisruptionBudget forbids is one too by
            its code, and is no sign of load.
        buckets: requests by upper bound of their duration in seconds, cumulative.
        busy: share of what it may work on at once that it works on now; None where unknown.
        queued: requests that wait in its queues now.
    """

    replica: float = 0.0
    answered: float = 0.0
    refused: float = 0.0
    buckets: Mapping[float, float] = msgspec.field(default_factory=dict)
    busy: float | None = None
    queued: float = 0.0


class Signals(msgspec.Struct, frozen=True):
    """What happened between two readings of one replica, and how it is now.

    Attributes:
        answered: requests but watches.
        refused: those answered 429.
        p99_s: 99 of 100 single-object requests took no longer; None where too few were made to say.
        busy: as in Reading.
        queued: as in Reading.
    """

    answered: float = 0.0
    refused: float = 0.0
    p99_s: float | None = None
    busy: float | None = None
    queued: float = 0.0


REQUESTS_MIN = 50
"""Of fewer requests the slowest says nothing."""


def read(text: str) -> Reading:
    """Take what counts out of a page of metrics in the Prometheus text format."""
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
        elif labels.get("priority_level") != "exempt":  # which has no limit
            if name == "apiserver_flowcontrol_current_executing_seats":
                seats += value
            else:
                limit += value
    busy = seats / limit if limit else inflight / INFLIGHT_MAX if inflight_known else None
    return Reading(replica, answered, max(refused, rejected), buckets, busy, queued)


def between(before: Reading | None, after: Reading) -> Signals:
    """Compare two readings of one replica; without the first one only what is now is known."""
    if before is None or before.replica != after.replica or after.answered < before.answered:
        return Signals(busy=after.busy, queued=after.queued)
    return Signals(
        answered=after.answered - before.answered,
        refused=max(0.0, after.refused - before.refused),
        p99_s=_quantile({bound: count - before.buckets.get(bound, 0.0) for bound, count in after.buckets.items()}),
        busy=after.busy,
        queued=after.queued,
    )


def _quantile(buckets: Mapping[float, float], share: float = 0.99) -> float | None:
    """The upper bound of the bucket that holds it; of what is above all finite ones, the last of those."""
    if not buckets:
        return None
    bounds = sorted(buckets)
    total = buckets[bounds[-1]]
    if total < REQUESTS_MIN:
        return None
    finite = [bound for bound in bounds if bound != float("inf")]
    return next((bound for bound in finite if buckets[bound] >= share * total), finite[-1] if finite else None)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, labels, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, dict(_LABEL.findall(labels)), number
