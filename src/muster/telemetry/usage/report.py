"""The findings as plain data, with stable names for scripts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.kube.clock import instant
from muster.telemetry.usage.examine import Examined
from muster.telemetry.usage.findings import Unused
from muster.telemetry.usage.proposal.droprules import DropRule, Proposal


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """Part of the report."""


class Metric(_Part, frozen=True):
    """A metric of a job that is not read."""

    metric: str
    job: str
    series: int
    samples_per_second: float
    bytes_per_day: float


class RecordingRule(_Part, frozen=True):
    """A recording rule whose metric nothing reads."""

    record: str
    group: str
    source: str


class Reader(_Part, frozen=True):
    """A query that does not name the metrics that it reads, and how many are kept only because of it.

    `shared_series` are kept only because of it and other such queries; `others` queries read the same as it.
    """

    source: str
    query: str
    doubt: str
    metrics: int
    series: int
    shared_series: int
    others: int


class Drop(_Part, frozen=True):
    """A step of `metric_relabel_configs` that drops metrics, and what it saves."""

    scrape_pool: str
    source_labels: tuple[str, ...]
    regex: str
    metrics: tuple[str, ...]
    series: int
    bytes_per_day: float


class LogPart(_Part, frozen=True):
    """A query log that was read."""

    path: str
    lines: int
    broken: int
    broken_at: tuple[int, ...]


class Log(_Part, frozen=True):
    """What the query logs contained."""

    files: tuple[LogPart, ...]
    queries: int
    queries_of_rules: int
    queries_outside_window: int
    first_time: str
    last_time: str
    longest_gap_seconds: float


class Report(_Part, frozen=True):
    """Everything that `muster telemetry unused` found."""

    server: str
    window_start: str
    window_end: str
    files: int
    queries: int
    rules: int
    query_log: Log | None
    metrics: int
    series: int
    bytes_per_sample: float
    bytes_per_sample_measured: bool
    used_metrics: int
    unused: tuple[Metric, ...]
    only_unused_rules: tuple[Metric, ...]
    unused_rules: tuple[RecordingRule, ...]
    broad_queries: tuple[Reader, ...]
    drop_rules: tuple[Drop, ...]
    not_scraped: tuple[Metric, ...]
    not_counted: dict[str, str]
    notes: tuple[str, ...]
    notes_left_out: int


def report_of(url: str, examined: Examined, proposal: Proposal) -> Report:
    """Return the report of one run."""
    inventory, findings = examined.inventory, examined.findings
    return Report(
        server=url,
        window_start=instant(examined.window[0]),
        window_end=instant(examined.window[1]),
        files=examined.files,
        queries=examined.queries,
        rules=examined.rules,
        query_log=_log(examined),
        metrics=len(inventory.series),
        series=inventory.total_series,
        bytes_per_sample=inventory.sample_bytes,
        bytes_per_sample_measured=inventory.sample_bytes_measured,
        used_metrics=findings.used,
        unused=_metrics(findings.unused),
        only_unused_rules=_metrics(findings.only_unused_rules),
        unused_rules=tuple(RecordingRule(each.name, each.group, each.source) for each in findings.unused_rules),
        broad_queries=tuple(
            Reader(
                each.broad.source,
                each.broad.text,
                each.broad.doubt,
                each.metrics,
                each.series,
                each.shared_series,
                each.broad.others,
            )
            for each in findings.broad
        ),
        drop_rules=tuple(map(_drop, proposal.rules)),
        not_scraped=_metrics(proposal.unplaced),
        not_counted=inventory.unknown,
        notes=tuple(examined.notes.texts),
        notes_left_out=examined.notes.left_out,
    )


def _metrics(unused: Iterable[Unused]) -> tuple[Metric, ...]:
    return tuple(Metric(each.name, each.job, each.series, each.samples_per_s, each.bytes_per_day) for each in unused)


def _drop(rule: DropRule) -> Drop:
    return Drop(rule.pool, rule.source_labels, rule.regex, rule.names, rule.series, rule.bytes_per_day)


def _log(examined: Examined) -> Log | None:
    log = examined.log
    if log is None:
        return None
    files = tuple(
        LogPart(str(each.path), each.reading.lines, each.reading.broken, tuple(each.reading.broken_at))
        for each in log.files
    )
    first, last = (instant(each) if each else "" for each in (log.first_s, log.last_s))
    return Log(files, log.queries, log.of_rules, log.outside, first, last, log.gap_s)
