"""Requests whose prices are compared with their real costs: what dashboards, variables, rules and people ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.guard.users import Request, panels_of, query_range
from tests.support.manyseries import HISTOGRAM

_MATCH = "match[]"


@dataclass(frozen=True)
class Corpus:
    """Requests whose prices are compared.

    Attributes:
        name: for figures.
        queries: instant and range queries.
        metadata: requests for series, labels and values.
        dear: requests whose memory is compared.
    """

    name: str
    queries: tuple[Request, ...]
    metadata: tuple[Request, ...]
    dear: tuple[Request, ...]


def fitted() -> Corpus:
    """Requests about `tests.support.manyseries`, to which the constants of prices were fitted."""
    return Corpus("fitted", tuple(_queries()), tuple(_metadata()), tuple(_dear()))


def _instant(expression: str) -> Request:
    return Request("/api/v1/query", (("query", expression),), 0.0)


def _queries() -> Iterator[Request]:
    """Instant queries and range queries of different sizes."""
    for team in (3, 11):
        own = f'namespace="team-{team}"'
        yield from panels_of(team)
        yield _instant(f"sum({HISTOGRAM}_count{{{own}}})")
        yield _instant(f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{own}}}[10m]))")
        yield _instant(f"max_over_time(container_memory_rss_bytes{{{own}}}[30m])")
        yield _instant(f"max_over_time(sum(container_threads{{{own}}})[30m:1m])")
        yield query_range(f"container_threads{{{own}}}", range_s=1200, step_s=60)
        yield query_range(
            f"container_memory_rss_bytes{{{own}}} / on (pod, container) container_memory_working_set_bytes{{{own}}}",
            range_s=900,
            step_s=30,
        )
    for pod in (8, 25):
        own = f'pod="job-{pod}-worker-1"'
        yield _instant(f"{{{own}}}")
        yield _instant(f"histogram_quantile(0.9, {HISTOGRAM}_bucket{{{own}}})")
        yield query_range(f"container_threads{{{own}}}", step_s=15)
        yield query_range(f"rate(container_cpu_usage_seconds_total{{{own}}}[5m])", step_s=60)
        yield query_range(f"{{{own},handler=~'push|pull'}}", range_s=900, step_s=30)
    yield _instant("count(container_threads)")
    yield _instant('count by (__name__) ({__name__=~"container_network_.+"})')
    yield _instant('sum(container_threads{container!="trainer"})')
    yield _instant('topk(10, container_memory_rss_bytes{container="trainer"})')
    yield _instant('sum(container_threads{pod=~"job-1.*"})')
    yield _instant("sum(container_threads offset 10m)")
    yield _instant('sum(rate(container_cpu_usage_seconds_total{container="trainer"}[5m]))')
    yield query_range('sum by (namespace) (container_threads{container="trainer"})', step_s=120)
    yield query_range('sum(rate(container_fs_reads_bytes_total{container=~"trainer|sidecar"}[10m]))', step_s=120)
    yield query_range(f'sum by (le) (rate({HISTOGRAM}_bucket{{handler="step",le=~"0.1|0.5|1"}}[5m]))', step_s=300)
    yield query_range("count(container_processes unless container_threads > 5000)", range_s=1200, step_s=60)


def _metadata() -> Iterator[Request]:
    """Requests for series, labels and values."""
    for team in (3, 11):
        own = f'namespace="team-{team}"'
        yield Request("/api/v1/series", ((_MATCH, f"container_threads{{{own}}}"),))
        yield Request("/api/v1/series", ((_MATCH, f"{{{own}}}"),))
        yield Request("/api/v1/label/pod/values", ((_MATCH, f"container_threads{{{own}}}"),))
        yield Request("/api/v1/labels", ((_MATCH, f"{{{own}}}"),))
        yield Request("/federate", ((_MATCH, f"container_threads{{{own}}}"),), None)
    yield Request("/api/v1/series", ((_MATCH, 'container_threads{container="trainer"}'),))
    yield Request("/api/v1/series", ((_MATCH, 'up{job="none"}'),))
    yield Request("/api/v1/label/node/values", ())
    yield Request("/api/v1/label/namespace/values", ())
    yield Request("/api/v1/label/__name__/values", ())
    yield Request("/api/v1/labels", ())
    yield Request("/federate", ((_MATCH, "container_threads"),), None)


def _dear() -> Iterator[Request]:
    """Requests that take much memory, in the order of how much."""
    yield query_range('rate(container_cpu_usage_seconds_total{container="trainer"}[5m])', step_s=60)
    yield query_range("container_threads", step_s=60)
    yield Request("/api/v1/series", ((_MATCH, '{__name__=~"container_.*"}'),))
    yield Request("/api/v1/series", ((_MATCH, '{le!=""}'),), None)
