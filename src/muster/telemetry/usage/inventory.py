"""Metrics that a server scrapes: series of each metric and job, scrape pools, bytes of a sample."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.telemetry.prometheus.answers import Labels, Metadata, RuleGroup
from muster.telemetry.prometheus.client import PrometheusClient, escaped
from muster.telemetry.prometheus.errors import PrometheusError
from muster.telemetry.prometheus.probe import PROBE_MATCHER
from muster.telemetry.usage.kept import HISTOGRAM, PARTS, SUMMARY
from muster.telemetry.usage.pools import Mark, Pool, marks_of, pool_of, pools_of_targets

NAMES_MAX: Final = 200_000
PROBE_SERIES: Final = 100_000
"""A query counts about so many series at most, so that it needs little memory of the server."""
COUNTED_MOST: Final = 1_000_000
"""A metric with more series is not counted by a query, since that needs about 500 bytes of the server for each."""
_PROBE_NAMES: Final = 500
_SUFFIXES: Final = ("_total", "_created", "_info")
"""OpenMetrics adds these to the name of a family: https://prometheus.io/docs/specs/om/open_metrics_spec/#suffixes"""
FRESH_S: Final = 600.0
"""Seconds before now in which metrics and values of labels count as present."""
_INTERVAL_S: Final = 60.0
SAMPLE_BYTES: Final = 1.5
"""Bytes of a sample if the server does not say: "1-2 bytes per sample" ("Storage" in the documentation)."""
_SAMPLE_BYTES: Final = (
    "sum(rate(prometheus_tsdb_compaction_chunk_size_bytes_sum[1d]))"
    " / sum(rate(prometheus_tsdb_compaction_chunk_samples_sum[1d]))"
)


@dataclass
class Inventory:
    """What a server scrapes.

    Attributes:
        series: of each metric, its series in each job.
        types: of metrics whose targets say it: counter, gauge, histogram, ...
        pools: scrape pools by name.
        marks: of jobs that several pools have, the label that differs between these.
        placed: of metrics of such jobs, their series in each pool.
        groups: rules of the server; None if it does not say.
        sample_bytes: bytes of a sample on disk.
        sample_bytes_measured: whether the server measured that.
        unknown: metrics whose series could not be counted, with the reason.
    """

    series: dict[str, dict[str, int]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    placed: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    groups: list[RuleGroup] | None = None
    sample_bytes: float = SAMPLE_BYTES
    sample_bytes_measured: bool = False
    unknown: dict[str, str] = field(default_factory=dict)

    def mark_jobs(self) -> None:
        """Find out how to distinguish the pools of one job; do it before counts are added."""
        self.marks = marks_of(self.pools.values())

    def add(self, labels: Labels, series: int) -> None:
        """Add a count of series with these labels."""
        name, job = labels.get("__name__", ""), labels.get("job", "")
        of_job = self.series.setdefault(name, {})
        of_job[job] = of_job.get(job, 0) + series
        if job in self.marks:
            pool, placed = pool_of(labels, self.marks), self.placed.setdefault((name, job), {})
            placed[pool] = placed.get(pool, 0) + series

    def shares(self, name: str, job: str) -> dict[str, int]:
        """Return the series of a metric in each pool that may scrape them, by the pool's name.

        If several pools may, and no label says which, the first one has them all.
        """
        placed = self.placed.get((name, job), {})
        if placed and "" not in placed:
            return placed
        pools = [each.name for each in self.pools.values() if job in each.jobs]
        return {pool: 0 if number else self.series[name][job] for number, pool in enumerate(pools)}

    def possible_names(self) -> dict[str, set[str]]:
        """Return the jobs of each metric, and of the classic parts that histograms could have instead."""
        found = {name: set(jobs) for name, jobs in self.series.items()}
        for name, jobs in self.series.items():
            if self.types.get(name) == HISTOGRAM:
                for part in PARTS:
                    found.setdefault(name + part, set()).update(jobs)
        return found

    def possible_parts(self) -> dict[str, set[str]]:
        """Return the jobs of classic parts that metrics without a type would have if they were histograms.

        Most of these metrics are not histograms. So only a query that names such a part shows that one is.
        """
        found: dict[str, set[str]] = {}
        for name, jobs in self.series.items():
            if name not in self.types and _family_of(name) not in self.types and not name.endswith(PARTS):
                for part in PARTS:
                    if others := set(jobs) - set(self.series.get(name + part, ())):
                        found[name + part] = others
        return found

    def samples_per_s(self, name: str, job: str) -> float:
        """Return the samples per second of a metric of a job."""
        return sum(series / self.interval_s(pool) for pool, series in self.shares(name, job).items())

    def interval_s(self, pool: str) -> float:
        """Return the time between two scrapes of a target of a pool."""
        return self.pools[pool].interval_s or _INTERVAL_S

    @property
    def total_series(self) -> int:
        """Number of series that were counted."""
        return sum(series for jobs in self.series.values() for series in jobs.values())


async def read_inventory(
    client: PrometheusClient, pools: Mapping[str, Pool], progress: Callable[[str], None] = lambda stage: None
) -> Inventory:
    """Ask a server what it scrapes, with queries that count a bounded number of series each.

    Args:
        client: of the server.
        pools: scrape pools, for a server that does not list its targets, or has too many.
        progress: is called with the current stage.

    Raises:
        PrometheusError: the server does not answer, or has too many metrics, or fails to list its rules.
    """
    inventory = Inventory()
    progress("names of metrics")
    now_s = time.time()
    names = await client.label_values("__name__", limit=NAMES_MAX + 1, start_s=now_s - FRESH_S, end_s=now_s)
    if len(names) > NAMES_MAX:
        raise PrometheusError(200, f"{client.url} has more than {NAMES_MAX} names of metrics", "too-big")
    progress("targets")
    try:
        inventory.pools = pools_of_targets(await client.targets()) or dict(pools)
    except PrometheusError as error:
        if error.reason not in ("refused", "too-big") or error.status in (401, 403):
            raise
        inventory.pools = dict(pools)
    inventory.mark_jobs()
    counted = 0
    sizes, others = await _known_sizes(client, len(names))
    for batch in batches(names, sizes, others):
        if len(batch) == 1 and sizes.get(batch[0], 0) > COUNTED_MOST:
            await _estimate(client, batch[0], sizes[batch[0]], inventory)
        else:
            await _count(client, batch, inventory)
        counted += len(batch)
        progress(f"series of {counted} of {len(names)} metrics")
    progress("types of metrics and rules")
    await _describe(client, inventory)
    return inventory


async def _known_sizes(client: PrometheusClient, names: int) -> tuple[Mapping[str, int], int]:
    """Return the series of the largest metrics, and the most series that any other metric has."""
    try:
        status = await client.tsdb_status(names + 1)
    except PrometheusError:
        return {}, PROBE_SERIES  # Mimir and Thanos have no such page
    sizes = {each.name: each.value for each in status.series_count_by_metric_name}
    return sizes, (1 if len(sizes) >= names else min(sizes.values(), default=PROBE_SERIES))


def batches(names: Iterable[str], sizes: Mapping[str, int], others: int) -> Iterator[list[str]]:
    """Group names so that each group has at most about PROBE_SERIES series; a larger metric is alone.

    Args:
        names: of metrics.
        sizes: series of some of them.
        others: the most series that one of the others has.
    """
    batch: list[str] = []
    total = 0
    for name in names:
        size = max(sizes.get(name, others), 1)
        if batch and (total + size > PROBE_SERIES or len(batch) >= _PROBE_NAMES):
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size
    if batch:
        yield batch


async def _count(client: PrometheusClient, names: Sequence[str], inventory: Inventory) -> None:
    """Count the series of metrics by job. If the server needs too long, count fewer metrics at once."""
    pattern = escaped("|".join(re2_escaped(each) for each in names))
    labels = sorted({"__name__", "job", *(mark.label for mark in inventory.marks.values())})
    query = f'count by ({", ".join(labels)}) ({{__name__=~"{pattern}",{PROBE_MATCHER}}})'
    try:
        samples = await client.query(query)
    except PrometheusError as error:
        if error.reason not in ("timeout", "too-big", "refused") or error.status in (401, 403):
            raise
        if len(names) == 1:
            inventory.unknown[names[0]] = error.message
            return
        half = len(names) // 2
        await _count(client, names[:half], inventory)
        await _count(client, names[half:], inventory)
        return
    for each in samples:
        if not 0 <= each.value < math.inf:
            raise PrometheusError(200, f"{client.url} counts {each.value} series", "not-prometheus")
        inventory.add(each.labels, int(each.value))


async def _estimate(client: PrometheusClient, name: str, series: int, inventory: Inventory) -> None:
    """Add a metric that has too many series to be counted by a query: divide them equally among its jobs."""
    try:
        selector = f'{{__name__="{escaped(name)}"}}'
        jobs = await client.label_values("job", [selector], start_s=time.time() - FRESH_S) or [""]
    except PrometheusError as error:
        inventory.unknown[name] = error.message
        return
    for job in jobs:
        inventory.add({"__name__": name, "job": job}, series // len(jobs))


def _family_of(name: str) -> str:
    """Return the name under which the metadata of a series may be."""
    return next((name.removesuffix(each) for each in _SUFFIXES if name.endswith(each)), name)


def _type_of(found: Sequence[Metadata]) -> str:
    """Return the type of a metric for which targets may say several, in any order: the one that keeps most."""
    types = sorted({each.type for each in found})
    return next((each for each in (HISTOGRAM, SUMMARY) if each in types), types[0])


async def _describe(client: PrometheusClient, inventory: Inventory) -> None:
    """Add what helps but is not needed; a server may not have it."""
    try:
        inventory.types = {name: _type_of(found) for name, found in (await client.metadata()).items() if found}
    except PrometheusError:
        inventory.types = {}
    try:
        inventory.groups = await client.rules()
    except PrometheusError as error:
        if not error.not_offered:  # what its rules read would seem to be unused
            raise
        inventory.groups = None
    try:
        measured = await client.value(_SAMPLE_BYTES)
    except PrometheusError:
        measured = None
    if measured is not None and 0.1 < measured < 1000:
        inventory.sample_bytes, inventory.sample_bytes_measured = measured, True


def re2_escaped(name: str) -> str:
    """Return a name as a pattern of RE2 that matches only this name."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name)
