"""Metrics of the read cache, read from its parts when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from muster.kube.described import Described, family
from muster.readcache.access.access import Access
from muster.readcache.serving.server import Server
from muster.readcache.sources import CachedSource, CachedSources

_OF: Final = ("resource", "media")
_DROPPED: Final = ("memory", "stalled")
_CHECKED: Final = ("equal", "different", "failed", "skipped")
"""Reasons and outcomes that are exported from the start: `rate` does not see the first value of a series."""

OBJECTS: Final = Described("muster_readcache_objects", "gauge", _OF, "Objects in the cache.")
OBJECT_BYTES: Final = Described("muster_readcache_object_bytes", "gauge", _OF, "Bytes of the objects in the cache.")
LOG_BYTES: Final = Described(
    "muster_readcache_log_bytes", "gauge", _OF, "Bytes of old objects that only the event log keeps."
)
LOG_EVENTS: Final = Described("muster_readcache_log_events", "gauge", _OF, "Events in the event log.")
WATCHES: Final = Described("muster_readcache_watches", "gauge", _OF, "Open watches of clients.")
BEHIND: Final = Described(
    "muster_readcache_watches_behind", "gauge", _OF, "Watches for which events wait, because their clients are slow."
)
SLOW: Final = Described(
    "muster_readcache_slow_watches_total", "counter", _OF, "Watches that were closed because their clients were slow."
)
DELIVERED: Final = Described(
    "muster_readcache_delivered_events_total", "counter", _OF, "Events sent to clients, counted once per watch."
)
EVENTS: Final = Described("muster_readcache_upstream_events_total", "counter", _OF, "Events from the API server.")
LISTS: Final = Described(
    "muster_readcache_upstream_lists_total", "counter", _OF, "Complete states loaded from the API server."
)
UPSTREAM_WATCHES: Final = Described(
    "muster_readcache_upstream_watches_total", "counter", _OF, "Watches that the API server accepted."
)
BREAKS: Final = Described(
    "muster_readcache_upstream_breaks_total",
    "counter",
    (*_OF, "why"),
    "Watches of the API server and lists that failed, by reason.",
)
RESETS: Final = Described(
    "muster_readcache_resets_total",
    "counter",
    _OF,
    "How often the API server's versions went back, as after a restore of etcd.",
)
AGE: Final = Described(
    "muster_readcache_age_seconds",
    "gauge",
    _OF,
    "Seconds since the last byte from the API server; 0 while the watch is open.",
)
PROOFS: Final = Described(
    "muster_readcache_proofs_total", "counter", (*_OF, "how"), "Proofs that the cache is fresh, by how they were had."
)
CHECKS: Final = Described(
    "muster_readcache_self_checks_total",
    "counter",
    (*_OF, "outcome"),
    "Comparisons of the cache with the API server, by outcome: equal, different, failed or skipped.",
)
UNPROVEN: Final = Described(
    "muster_readcache_unproven_total", "counter", _OF, "Requests that were refused because freshness was not proven."
)

Read = Callable[[CachedSource], float]

_SINGLE: Final[tuple[tuple[Described, Read], ...]] = (
    (OBJECTS, lambda source: len(source.store.objects.items)),
    (OBJECT_BYTES, lambda source: source.store.objects.bytes),
    (LOG_BYTES, lambda source: source.store.hub.bytes),
    (LOG_EVENTS, lambda source: len(source.store.hub.log)),
    (WATCHES, lambda source: len(source.store.hub)),
    (BEHIND, lambda source: source.store.hub.behind),
    (SLOW, lambda source: source.store.hub.slow),
    (DELIVERED, lambda source: source.store.hub.delivered),
    (EVENTS, lambda source: source.follower.counters.events),
    (LISTS, lambda source: source.follower.counters.lists),
    (UPSTREAM_WATCHES, lambda source: source.follower.counters.watches),
    (RESETS, lambda source: source.follower.counters.resets),
    (AGE, lambda source: source.age_s()),
    (UNPROVEN, lambda source: source.follower.counters.not_fresh),
)
METRICS: Final = (*(metric for metric, _ in _SINGLE), BREAKS, PROOFS, CHECKS)

CONNECTIONS: Final = Described("muster_readcache_connections", "gauge", (), "Open connections of clients.")
ACCEPTED: Final = Described("muster_readcache_connections_total", "counter", (), "Connections that were accepted.")
TOO_MANY: Final = Described(
    "muster_readcache_refused_connections_total", "counter", (), "Connections closed at once: there were too many."
)
WAITING: Final = Described("muster_readcache_waiting_bytes", "gauge", (), "Bytes that wait for clients.")
REQUESTS: Final = Described("muster_readcache_requests_total", "counter", (), "Requests of clients.")
FORWARDED: Final = Described(
    "muster_readcache_forwarded_requests_total", "counter", (), "Requests that were passed on to the API server."
)
REJECTED: Final = Described(
    "muster_readcache_rejected_requests_total", "counter", (), "Requests that were not valid HTTP."
)
ERRORS: Final = Described(
    "muster_readcache_failed_requests_total", "counter", (), "Requests that failed by a fault of the cache."
)
DROPPED: Final = Described(
    "muster_readcache_dropped_clients_total", "counter", ("why",), "Clients that were cut off, by reason."
)
REVIEWS: Final = Described(
    "muster_readcache_reviews_total",
    "counter",
    ("review", "outcome"),
    "Questions about access that the API server answered: whose a token is, and what a user may do.",
)
KEPT: Final = Described(
    "muster_readcache_kept_decisions_total",
    "counter",
    ("review",),
    "Questions that a kept answer settled.",
)
LIMITED: Final = Described(
    "muster_readcache_limited_tokens_total",
    "counter",
    (),
    "Requests with an unknown token that were refused, because too many tokens were not valid.",
)
SERVER_METRICS: Final = (
    CONNECTIONS,
    ACCEPTED,
    TOO_MANY,
    WAITING,
    REQUESTS,
    FORWARDED,
    REJECTED,
    ERRORS,
    DROPPED,
    REVIEWS,
    KEPT,
    LIMITED,
)


class KindMetrics(Collector):
    """What each followed kind does."""

    def __init__(self, sources: CachedSources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        labelled = [((_name(source), source.media.name.lower()), source) for source in self._sources]
        for metric, read in _SINGLE:
            yield family(metric, ((labels, float(read(source))) for labels, source in labelled))
        counters = [(labels, source.follower.counters) for labels, source in labelled]
        yield family(BREAKS, (((*of, why), float(n)) for of, each in counters for why, n in each.breaks.items()))
        yield family(PROOFS, (((*of, how), float(n)) for of, each in counters for how, n in each.proofs.items()))
        checks = [(of, {**dict.fromkeys(_CHECKED, 0), **each.checks}) for of, each in counters]
        yield family(CHECKS, (((*of, how), float(n)) for of, each in checks for how, n in each.items()))


class ServerMetrics(Collector):
    """What the server for clients does."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        counters = self._server.counters
        for metric, value in (
            (CONNECTIONS, self._server.connections),
            (ACCEPTED, counters.connections),
            (TOO_MANY, counters.refused_connections),
            (WAITING, self._server.waiting_bytes),
            (REQUESTS, counters.requests),
            (FORWARDED, counters.forwarded),
            (REJECTED, counters.rejected),
            (ERRORS, counters.errors),
        ):
            yield family(metric, [((), float(value))])
        dropped = {**dict.fromkeys(_DROPPED, 0), **counters.dropped}
        yield family(DROPPED, (((why,), float(count)) for why, count in dropped.items()))


class AccessMetrics(Collector):
    """How questions about access are decided."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        counters = self._access.counters
        yield family(REVIEWS, ((labels, float(count)) for labels, count in list(counters.reviews.items())))
        yield family(KEPT, (((review,), float(count)) for review, count in list(counters.kept.items())))
        yield family(LIMITED, [((), float(counters.limited))])


def _name(source: CachedSource) -> str:
    resource = source.kind.resource
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
