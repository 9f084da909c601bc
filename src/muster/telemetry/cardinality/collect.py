"""Collects the evidence with bounded work for the server.

- It reads statistics that the server keeps, and counts series with queries that have a time limit.
- No query touches more series than `most_series`, apart from `up` and the other
  metrics that each target has. It never asks for all series of a metric.
- Of a metric with more series, only those of one target are looked at.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from muster.telemetry.cardinality.asker import Asker
from muster.telemetry.cardinality.evidence import Evidence, Job, Label, Metric, Population
from muster.telemetry.cardinality.labels import BUCKET, NODE, PEER, POD, TARGET
from muster.telemetry.prometheus.answers import BuildInfo, Count, TsdbStatus
from muster.telemetry.prometheus.client import PrometheusClient, matchers
from muster.telemetry.prometheus.durations import seconds_of
from muster.telemetry.prometheus.errors import PrometheusError
from muster.telemetry.prometheus.page import parse_page
from muster.telemetry.prometheus.probe import PROBE_MATCHER

NODES: Final = ("count(kube_node_info)", "count(node_uname_info)", "count(kubelet_node_name)")
PODS: Final = ("count(kube_pod_info)", "sum(kubelet_running_pods)")
SAMPLE_BYTES: Final = 150.0
"""Bytes of a sample in the text format, if the server does not export `scrape_body_size_bytes`."""
SERIES_BYTES: Final = 3072.0
"""Memory of a server for each series, if its own metrics do not show it."""
_SERIES_BYTES_BOUNDS: Final = (1024.0, 16384.0)
_SERIES_LEAST: Final = 50_000
_WINDOW_S: Final = 600
_FULL: Final = 0.9
_TARGETS_MAX: Final = 2000
"""The page of targets has about 1.5 kB for each, so it is read only if there are few."""
_LABELS_MAX: Final = 5
_JOBS_TRIED: Final = 5
_STEPS: Final = 8
_HISTORY_SHARE: Final = 4
_RECENT_S: Final = 300.0
_LIMITS_SINCE: Final = (2, 54)
_OWN: Final = frozenset({"__name__", "job"}) | BUCKET


class Settings(NamedTuple):
    """How much is looked at.

    Attributes:
        metrics: number of metrics.
        most_series: that a query may touch.
        nodes: of the cluster; 0: found out.
        pods: of the cluster; 0: found out.
        history_s: how far back earlier numbers of series are compared; 0: not at all.
        limit_s: time for all queries.
    """

    metrics: int = 20
    most_series: int = 50_000
    nodes: int = 0
    pods: int = 0
    history_s: float = 7 * 86400.0
    limit_s: float = 120.0


async def collect(
    client: PrometheusClient, settings: Settings, progress: Callable[[str], None] = lambda what: None
) -> Evidence:
    """Return the evidence of a server. Raises PrometheusError if it cannot be reached or answers nothing usable."""
    asker = Asker(client, settings.limit_s, progress)
    await client.query("vector(1)")  # an address that is wrong fails here, and not as a note
    status = await _status(asker, settings.metrics)
    population = await _population(asker, settings)
    jobs = await _jobs(asker)
    series, series_bytes = await _head(asker, status, jobs)
    instances = await _instances(asker, jobs)
    limited = _obeys_limits(await asker.optional(client.buildinfo, "version"))
    metrics = [
        await _metric(asker, each, settings, population, instances, limited)
        for each in status.series_count_by_metric_name[: settings.metrics]
    ]
    memory = {each.name: each.value for each in status.memory_in_bytes_by_label_name}
    labels = tuple(
        Label(each.name, each.value, memory.get(each.name, 0))
        for each in status.label_value_count_by_label_name
        if each.name not in _OWN
    )
    return Evidence(
        series, series_bytes, population, jobs, tuple(metrics), labels, asker.requests, asker.spent_s,
        tuple(asker.notes),
    )  # fmt: skip


async def _status(asker: Asker, limit: int) -> TsdbStatus:
    """Return the largest metrics and labels; also from Mimir, which has no page for them but an API of its own."""
    found = await asker.optional(lambda: asker.client.tsdb_status(limit), "statistics of the database")
    if found is not None:
        return found
    names = await asker.optional(
        lambda: asker.client.cardinality("__name__", limit), "cardinality of metric names (Mimir)"
    )
    if names is not None:
        return TsdbStatus(series_count_by_metric_name=tuple(names.counts), total_series=names.series_count_total)
    asker.notes.append("the server has no statistics of its series, so only its targets are shown")
    return TsdbStatus()


async def _population(asker: Asker, settings: Settings) -> Population:
    expression = ""
    nodes, pods = settings.nodes, settings.pods
    for each in NODES:
        found = await asker.number(each)
        if found:
            expression, nodes = each, nodes or round(found)
            break
    for each in PODS:
        if pods:
            break
        pods = round(await asker.number(each))
    if not nodes:
        asker.notes.append("the number of nodes is not known (kube_node_info, node_uname_info): give it with --nodes")
    return Population(nodes, pods, expression)


async def _jobs(asker: Asker) -> tuple[Job, ...]:
    """Return the jobs. Each of these metrics has one series for each target."""
    targets = await asker.by_label("count by (job) (up)", "job")
    samples = await asker.by_label("sum by (job) (scrape_samples_post_metric_relabeling)", "job")
    largest = await asker.by_label("max by (job) (scrape_samples_post_metric_relabeling)", "job")
    durations = await asker.by_label("max by (job) (scrape_duration_seconds)", "job")
    scrapes = await asker.by_label(f"max by (job) (count_over_time(up[{_WINDOW_S}s]))", "job")
    added = await asker.by_label(f"sum by (job) (sum_over_time(scrape_series_added[{_WINDOW_S}s]))", "job")
    pages = await asker.by_label("sum by (job) (scrape_body_size_bytes)", "job")
    intervals = await _intervals(asker) if 0 < sum(targets.values()) <= _TARGETS_MAX else {}
    # The first scrape of a target adds all its series, which is not churn.
    old = {name for name, number in scrapes.items() if number * intervals.get(name, _WINDOW_S) >= _FULL * _WINDOW_S}
    found = [
        Job(
            name=name,
            targets=round(number),
            samples=samples.get(name, 0.0),
            largest_samples=largest.get(name, 0.0),
            scrape_s=durations.get(name, 0.0),
            interval_s=intervals.get(name) or (_WINDOW_S / scrapes[name] if scrapes.get(name) else 0.0),
            scrape_bytes=pages.get(name) or samples.get(name, 0.0) * SAMPLE_BYTES,
            added_per_h=added.get(name, 0.0) * 3600 / _WINDOW_S if name in old else 0.0,
        )
        for name, number in targets.items()
    ]
    return tuple(sorted(found, key=lambda job: (-job.samples, job.name)))


async def _intervals(asker: Asker) -> dict[str, float]:
    """Return the longest interval of each job, as configured."""
    found: dict[str, float] = {}
    for target in await asker.optional(asker.client.targets, "targets") or []:
        job = target.labels.get("job", "")
        with contextlib.suppress(ValueError):
            found[job] = max(seconds_of(target.scrape_interval), found.get(job, 0.0))
    return found


async def _head(asker: Asker, status: TsdbStatus, jobs: Sequence[Job]) -> tuple[int, float]:
    """Return the number of series, and the server's memory for each of them."""
    series = status.head_stats.num_series or status.total_series or round(sum(each.samples for each in jobs))
    body = await asker.optional(lambda: asker.client.page("/metrics"), "/metrics")
    if body is not None and series >= _SERIES_LEAST:
        with contextlib.suppress(PrometheusError):
            page = parse_page(body)
            own, memory = page.value("prometheus_tsdb_head_series"), page.value("process_resident_memory_bytes")
            if own and memory:
                least, most = _SERIES_BYTES_BOUNDS
                return series, min(max(memory / own, least), most)
    return series, SERIES_BYTES


def _obeys_limits(build: BuildInfo | None) -> bool:
    """Return whether requests for series have a limit: since Prometheus 2.54. Other programs have other versions."""
    if build is None or build.application:
        return False
    match = re.match(r"(\d+)\.(\d+)\.", build.version)
    return match is not None and (int(match[1]), int(match[2])) >= _LIMITS_SINCE


async def _instances(asker: Asker, jobs: Sequence[Job]) -> dict[str, str]:
    """Return one target of each job."""
    found = await asker.query("topk by (job) (1, up)") if jobs else []
    return {each.labels.get("job", ""): each.labels[TARGET] for each in found if TARGET in each.labels}


async def _metric(
    asker: Asker,
    count: Count,
    settings: Settings,
    population: Population,
    instances: Mapping[str, str],
    limited: bool,
) -> Metric:
    if count.value > settings.most_series:
        return await _large_metric(asker, count, settings, instances, limited)
    selector = _selector(count.name)
    found = await asker.query(f"topk by (job) (1, {selector})")
    jobs = tuple(sorted({each.labels["job"] for each in found if "job" in each.labels}))
    labels = sorted({name for each in found for name in each.labels} - _OWN)
    distinct = {}
    for label in _candidates(labels):
        distinct[label] = round(await asker.number(f"count(count by ({label}) ({selector}))"))
    pairs = {}
    for a, b in combinations([each for each in sorted(distinct) if distinct[each] > 1], 2):
        pairs[f"{a},{b}"] = round(await asker.number(f"count(count by ({a}, {b}) ({selector}))"))
    history: tuple[tuple[float, float], ...] = ()
    if population.nodes_expression and settings.history_s and count.value * _HISTORY_SHARE <= settings.most_series:
        history = await _history(asker, selector, population.nodes_expression, settings.history_s)
    present = {name for each in found for name in each.labels} - {"__name__"}
    return Metric(count.name, count.value, jobs, tuple(sorted(present)), distinct, pairs, history)


async def _large_metric(
    asker: Asker, count: Count, settings: Settings, instances: Mapping[str, str], limited: bool
) -> Metric:
    """Look at the series of one target, of the first jobs that have the metric; else at a single series.

    `limited` is whether the server obeys the limit of requests for series: otherwise it would collect all of them.
    """
    for job, instance in list(instances.items())[:_JOBS_TRIED]:
        selector = _selector(count.name, (("job", job), (TARGET, instance)))
        number = await asker.number(f"count({selector})")
        if 0 < number <= settings.most_series:
            found = await asker.query(f"topk(1, {selector})")
            labels = tuple(sorted({name for each in found for name in each.labels} - {"__name__"}))
            return Metric(count.name, count.value, (job,), labels)
    if limited:
        now_s = time.time()
        selector = _selector(count.name)
        one = await asker.optional(lambda: asker.client.series([selector], now_s - _RECENT_S, now_s, 1), selector)
        if one:
            jobs = (one[0]["job"],) if "job" in one[0] else ()
            return Metric(count.name, count.value, jobs, tuple(sorted(set(one[0]) - {"__name__"})))
    asker.notes.append(f"{count.name} has {count.value} series, too many to look at its labels")
    return Metric(count.name, count.value)


async def _history(asker: Asker, selector: str, nodes: str, back_s: float) -> tuple[tuple[float, float], ...]:
    """Return nodes and series at several times before."""
    end_s = time.time()
    step_s = max(back_s / _STEPS, 1.0)
    lines = [
        await asker.over_time(expression, end_s - back_s, end_s, step_s) for expression in (nodes, f"count({selector})")
    ]
    if not all(lines):
        return ()
    series = dict(lines[1][0].points)
    return tuple((value, series[at_s]) for at_s, value in lines[0][0].points if at_s in series)


def _candidates(labels: Sequence[str]) -> list[str]:
    """Return labels whose values are counted: those with known names first."""
    known = NODE | POD | PEER | {TARGET}
    return sorted((each for each in labels if _plain(each)), key=lambda each: (each not in known, each))[:_LABELS_MAX]


def _plain(label: str) -> bool:
    """Return whether a label can be written in `by ()` without quotes."""
    return label.isascii() and label.isidentifier()


def _selector(name: str, pairs: Sequence[tuple[str, str]] = ()) -> str:
    """Return a selector of a metric. The name is a matcher, so that any name can be written."""
    inner = matchers([("__name__", name), *pairs])
    return f"{inner[:-1]},{PROBE_MATCHER}}}"
