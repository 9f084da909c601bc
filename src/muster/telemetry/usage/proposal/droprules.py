"""Drop rules: which scrape pool stops storing which metrics, and what each rule saves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from muster.telemetry.usage.findings import DAY_S, Unused
from muster.telemetry.usage.inventory import Inventory, re2_escaped
from muster.telemetry.usage.proposal.regexes import PATTERN_MAX, patterns

SEPARATOR: Final = ";"
"""Prometheus joins the values of `source_labels` with it."""


@dataclass(frozen=True)
class DropRule:
    """A step of `metric_relabel_configs` that drops metrics.

    Attributes:
        pool: the scrape pool that it belongs to.
        job: the only job whose series are dropped; None: the metrics are unused in every job.
        regex: anchored pattern of the names; with a job, of `JOB;NAME`.
        names: metrics that are dropped.
        series: that are not stored any more. If several pools may scrape a series, the first one has it.
        bytes_per_day: bytes on disk that this saves each day.
    """

    pool: str
    job: str | None
    regex: str
    names: tuple[str, ...]
    series: int
    bytes_per_day: float

    @property
    def source_labels(self) -> tuple[str, ...]:
        """Labels whose values are compared with the pattern."""
        return ("__name__",) if self.job is None else ("job", "__name__")


@dataclass(frozen=True)
class Proposal:
    """Rules, and unused metrics that no scrape pool scrapes: remote write or a pushing job brings them."""

    rules: tuple[DropRule, ...]
    unplaced: tuple[Unused, ...]


def propose(unused: Iterable[Unused], inventory: Inventory) -> Proposal:
    """Group unused metrics into rules, one pattern a rule, those that save most first."""
    groups: dict[tuple[str, str | None], dict[str, list[Unused]]] = {}
    unplaced = []
    for each in unused:
        shares = inventory.shares(each.name, each.job)
        narrow = None if each.everywhere else each.job
        if not shares or (narrow is not None and SEPARATOR in each.job + each.name):
            unplaced.append(each)
            continue
        for pool in shares:
            groups.setdefault((pool, narrow), {}).setdefault(each.name, []).append(each)
    rules = []
    for (pool, job), metrics in groups.items():
        start = "" if job is None else re2_escaped(job + SEPARATOR)
        for found in patterns(metrics, max(PATTERN_MAX - len(start), 1)):
            dropped = [each for name in found.names for each in metrics[name]]
            series = sum(inventory.shares(each.name, each.job)[pool] for each in dropped)
            saved = series / inventory.interval_s(pool) * DAY_S * inventory.sample_bytes
            regex = found.pattern if not start else f"{start}({found.pattern})"
            rules.append(DropRule(pool, job, regex, found.names, series, saved))
    return Proposal(tuple(sorted(rules, key=lambda each: (each.pool, -each.series, each.regex))), tuple(unplaced))
