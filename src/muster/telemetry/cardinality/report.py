"""The cost of each metric, label and job, now and in a larger cluster; worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from muster.telemetry.cardinality.evidence import Evidence, Job, Label, Metric
from muster.telemetry.cardinality.growth import Growth, job_growth, label_growth, metric_growth
from muster.telemetry.cardinality.labels import BUCKET, NEEDLESS, OF_SCRAPES

Fix = Literal["aggregate-pairs", "drop-labels", "fewer-buckets", "drop-unused", "shard-target", "limit-churn"]
_CHURN_SHARE: Final = 0.5
_SLOW_SHARE: Final = 0.8
_WORTH_SERIES: Final = 1000


class Cost(msgspec.Struct, frozen=True):
    """Cost of series.

    Attributes:
        series: in the head.
        memory_bytes: of the server.
        samples_per_s: that are stored.
        scrape_bytes_per_s: that are transferred by scrapes.
    """

    series: float
    memory_bytes: float
    samples_per_s: float
    scrape_bytes_per_s: float

    def times(self, factor: float) -> Cost:
        """Return this cost, `factor` times as high."""
        return Cost(*(getattr(self, name) * factor for name in self.__struct_fields__))


class MetricRow(msgspec.Struct, frozen=True):
    """A metric: how it grows, its cost now and then, and what to do."""

    name: str
    jobs: tuple[str, ...]
    growth: Growth
    now: Cost
    then: Cost
    fixes: tuple[Fix, ...]


class LabelRow(msgspec.Struct, frozen=True):
    """A label: how its values grow."""

    name: str
    growth: Growth
    values: int
    values_then: float
    memory_bytes: int


class JobRow(msgspec.Struct, frozen=True):
    """Targets of a job: how their number grows, and the cost of their scrapes.

    Attributes:
        job: the job.
        growth: of the number of its targets.
        factor: how many times as many samples all its targets have then.
        samples_per_s_then: that are stored then.
        scrape_s_then: longest duration of a scrape then, if it grows with the samples.
        fixes: what to do.
    """

    job: Job
    growth: Growth
    factor: float
    samples_per_s_then: float
    scrape_s_then: float
    fixes: tuple[Fix, ...]


class Report(msgspec.Struct, frozen=True):
    """The report.

    `factor` is how many times as large the cluster is then. `projected` is whether the server showed its metrics:
    without them, the cost then is not known, and `then` covers only what grows with the targets.
    """

    factor: float
    projected: bool
    now: Cost
    then: Cost
    metrics: tuple[MetricRow, ...]
    labels: tuple[LabelRow, ...]
    jobs: tuple[JobRow, ...]
    evidence: Evidence

    @property
    def grows_faster(self) -> bool:
        """Whether a metric grows faster than the cluster, or a target cannot be scraped in time then."""
        squared = any(row.growth.power > 1 and row.then.series >= _WORTH_SERIES for row in self.metrics)
        return squared or any("shard-target" in row.fixes for row in self.jobs)


def report(evidence: Evidence, factor: float) -> Report:
    """Compute the cost of a cluster that is `factor` times as large."""
    jobs = {job.name: job for job in evidence.jobs}
    metrics = [_metric_row(each, evidence, jobs, factor) for each in evidence.metrics]
    metrics.sort(key=lambda row: (-row.then.series, row.name))
    labels = [_label_row(each, evidence, factor) for each in evidence.labels]
    labels.sort(key=lambda row: (-row.values_then, row.name))
    rows = [_job_row(each, metrics, evidence, factor) for each in evidence.jobs]
    rows.sort(key=lambda row: (-row.samples_per_s_then, row.job.name))
    samples_per_s = sum(each.samples_per_s for each in evidence.jobs)
    now = Cost(
        evidence.series,
        evidence.series * evidence.series_bytes,
        samples_per_s,
        sum(each.scrape_bytes / each.interval_s for each in evidence.jobs if each.interval_s),
    )
    return Report(
        factor, bool(metrics), now, _then(now, metrics, rows), tuple(metrics), tuple(labels), tuple(rows), evidence
    )


def _metric_row(metric: Metric, evidence: Evidence, jobs: Mapping[str, Job], factor: float) -> MetricRow:
    growth = metric_growth(metric, jobs, evidence.population)
    now = _cost(metric, evidence, jobs)
    return MetricRow(
        metric.name, metric.jobs, growth, now, now.times(growth.times(factor)), _metric_fixes(metric, growth)
    )


def _cost(metric: Metric, evidence: Evidence, jobs: Mapping[str, Job]) -> Cost:
    """Return the cost of a metric; its samples are those of the jobs that export it, or of an average job."""
    own = [jobs[each] for each in metric.jobs if each in jobs] or list(evidence.jobs)
    samples = sum(each.samples for each in own)
    share = metric.series / samples if samples else 0.0
    return Cost(
        metric.series,
        metric.series * evidence.series_bytes,
        share * sum(each.samples_per_s for each in own),
        share * sum(each.scrape_bytes / each.interval_s for each in own if each.interval_s),
    )


def _metric_fixes(metric: Metric, growth: Growth) -> tuple[Fix, ...]:
    if not growth.power:
        return ()
    fixes: list[Fix] = []
    if growth.power > 1:
        fixes.append("aggregate-pairs")
    if NEEDLESS & set(metric.labels):
        fixes.append("drop-labels")
    if BUCKET & set(metric.labels):
        fixes.append("fewer-buckets")
    if metric.name != "up" and not metric.name.startswith(OF_SCRAPES):
        fixes.append("drop-unused")
    return tuple(fixes)


def _label_row(label: Label, evidence: Evidence, factor: float) -> LabelRow:
    growth = label_growth(label, evidence.population)
    return LabelRow(label.name, growth, label.values, label.values * growth.times(factor), label.memory_bytes)


def _job_row(job: Job, metrics: Sequence[MetricRow], evidence: Evidence, factor: float) -> JobRow:
    """Targets that grow in number keep their size; the pages of the others grow with their metrics."""
    growth = job_growth(job, evidence.population)
    own = [row for row in metrics if job.name in row.jobs]
    now, then = sum(row.now.series for row in own), sum(row.then.series for row in own)
    by_metrics = then / now if now else 1.0
    total = max(growth.times(factor), by_metrics) if growth.power else by_metrics
    each = total / growth.times(factor)
    scrape_s = job.scrape_s * each
    fixes: list[Fix] = []
    if each > 1 and job.interval_s and scrape_s > _SLOW_SHARE * job.interval_s:
        fixes.append("shard-target")
    if job.samples and job.added_per_h > _CHURN_SHARE * job.samples:
        fixes.append("limit-churn")
    return JobRow(job, growth, total, job.samples_per_s * total, scrape_s, tuple(fixes))


def _then(now: Cost, metrics: Sequence[MetricRow], jobs: Sequence[JobRow]) -> Cost:
    """Add up the metrics that were looked at; the rest of the series grows as the samples of all jobs."""
    samples = sum(row.job.samples for row in jobs)
    factor = sum(row.job.samples * row.factor for row in jobs) / samples if samples else 1.0
    looked_at = sum(row.now.series for row in metrics)
    rest = max(now.series - looked_at, 0.0)
    series = sum(row.then.series for row in metrics) + rest * factor
    return now.times(series / now.series) if now.series else now
