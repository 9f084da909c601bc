"""Finds the metrics that are scraped and not read, and the recording rules that are not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.telemetry.usage.inputs.rules import Rule
from muster.telemetry.usage.inventory import Inventory
from muster.telemetry.usage.kept import kept_because, kept_with_family
from muster.telemetry.usage.ledger import Broad, Ledger, Pair
from muster.telemetry.usage.query import read_query

DAY_S: Final = 86400


@dataclass(frozen=True)
class Unused:
    """A metric of a job that is not read.

    Attributes:
        name: of the metric.
        job: value of the label `job`.
        series: number of its series now.
        samples_per_s: samples that are scraped per second.
        bytes_per_day: bytes that these need on disk each day.
        everywhere: whether no job's series of this metric are read.
    """

    name: str
    job: str
    series: int
    samples_per_s: float
    bytes_per_day: float
    everywhere: bool


@dataclass(frozen=True)
class BroadUse:
    """Metrics that are kept only because a broad query reads them, or could.

    Attributes:
        broad: the query.
        metrics: number of metrics that no other query reads.
        series: number of their series.
        shared_series: number of series that only this and other broad queries read.
    """

    broad: Broad
    metrics: int
    series: int
    shared_series: int = 0


@dataclass
class Findings:
    """What is not used.

    Attributes:
        unused: metrics that nothing reads.
        only_unused_rules: metrics that only unused recording rules read; they are kept unless the rules are deleted.
        unused_rules: recording rules whose metric nothing reads.
        broad: broad queries, those that keep the most series first.
        used: number of metrics that are read by name, in at least one job.
        kept: number of metrics that are kept without a reader.
    """

    unused: list[Unused] = field(default_factory=list)
    only_unused_rules: list[Unused] = field(default_factory=list)
    unused_rules: list[Rule] = field(default_factory=list)
    broad: list[BroadUse] = field(default_factory=list)
    used: int = 0
    kept: int = 0

    def with_unused_rules_deleted(self) -> Findings:
        """Return the findings as if the unused recording rules were deleted already."""
        unused = sorted((*self.unused, *self.only_unused_rules), key=_order)
        return Findings(unused, [], self.unused_rules, self.broad, self.used, self.kept)


def add_rules(ledger: Ledger, rules: Iterable[Rule]) -> list[Rule]:
    """Record what rules read: alerts always, a recording rule only if its metric is read. Return the unread ones.

    Call this after the other inputs.
    """
    waiting: list[Rule] = []
    for rule in rules:
        if rule.records:
            waiting.append(rule)
            continue
        for text in (rule.expr, *rule.templates):
            ledger.add(read_query(text), rule.source, text)
    while True:
        used = [each for each in waiting if each.name in ledger.used_records]
        if not used:
            return waiting
        waiting = [each for each in waiting if each.name not in ledger.used_records]
        for rule in used:
            ledger.add(read_query(rule.expr), rule.source, rule.expr)


def find(inventory: Inventory, ledger: Ledger, unread: Sequence[Rule], recorded: Iterable[str]) -> Findings:
    """Compare what is scraped with what is read.

    Args:
        inventory: what is scraped.
        ledger: what is read.
        unread: recording rules whose metrics are not read.
        recorded: names that recording rules write; their series are not scraped.
    """
    written = frozenset(recorded)
    pairs = {(name, job) for name, jobs in inventory.series.items() for job in jobs if name not in written}
    read = set(ledger.uses)
    used = read & pairs
    kept = {pair for pair in pairs - used if kept_because(pair[0]) or pair[0] in inventory.unknown}
    kept |= kept_with_family(pairs, read | kept, inventory.types)
    free = pairs - used - kept
    of_unread = {selection for each in unread for selection in read_query(each.expr).selections}
    read_by_rules = ledger.pairs(of_unread) - used - kept
    for_rules = read_by_rules & free
    for_rules |= kept_with_family(pairs, used | kept | read_by_rules, inventory.types) & free
    held = {name for name, _ in used | kept | for_rules} | ledger.read_in_some_job
    held |= {name for each in of_unread if each.job for name in ledger.names(each)}

    def unused(pair: Pair) -> Unused:
        name, job = pair
        series = inventory.series[name][job]
        rate = inventory.samples_per_s(name, job)
        return Unused(name, job, series, rate, rate * DAY_S * inventory.sample_bytes, name not in held)

    return Findings(
        unused=sorted(map(unused, free - for_rules), key=_order),
        only_unused_rules=sorted(map(unused, for_rules), key=_order),
        unused_rules=list(unread),
        broad=_broad_uses(inventory, ledger, used),
        used=len({name for name, job in used if ledger.uses[name, job].readers}),
        kept=len({name for name, _ in kept}),
    )


def _broad_uses(inventory: Inventory, ledger: Ledger, used: Iterable[Pair]) -> list[BroadUse]:
    metrics: dict[int, set[str]] = {}
    alone: Counter[int] = Counter()
    shared: Counter[int] = Counter()
    for name, job in used:
        use = ledger.uses[name, job]
        if use.readers or kept_because(name):
            continue
        if len(use.broad) == 1:
            metrics.setdefault(use.broad[0], set()).add(name)
        for number in use.broad:
            (alone if len(use.broad) == 1 else shared)[number] += inventory.series[name][job]
    found = [
        BroadUse(each, len(metrics.get(number, ())), alone[number], shared[number])
        for number, each in enumerate(ledger.broad)
    ]
    return sorted(found, key=lambda each: (-each.series, -each.shared_series, each.broad.source, each.broad.text))


def _order(unused: Unused) -> tuple[float, str, str]:
    return -unused.bytes_per_day, unused.name, unused.job
