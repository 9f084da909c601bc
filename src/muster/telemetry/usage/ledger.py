"""Records which scraped metrics the inputs read, and which recording rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.telemetry.usage.query import Query
from muster.telemetry.usage.selection import EVERYTHING, Selection

_SOURCES_MAX: Final = 3
_BROAD_EACH_MAX: Final = 10
"""Broad queries that are remembered for each metric: as many as a report lists."""
_CACHE_MAX: Final = 20_000
_BROAD_MAX: Final = 5_000

Pair = tuple[str, str]
"""A metric's name and a job."""


@dataclass
class Use:
    """Who reads a metric in a job.

    Attributes:
        sources: a few of the readers that name the metric.
        readers: number of readers that name it.
        broad: numbers of a few broad queries that read it too, by `Ledger.broad`.
    """

    sources: list[str] = field(default_factory=list)
    readers: int = 0
    broad: list[int] = field(default_factory=list)


@dataclass
class Broad:
    """A query that reads metrics without naming each, or that could read them.

    Attributes:
        source: where the query is.
        text: the query.
        doubt: why it was not understood completely; "" if it was.
        others: number of other queries that read the same.
    """

    source: str
    text: str
    doubt: str
    others: int = 0


class Ledger:
    """Uses of metrics. It grows with the number of metrics and of broad queries, not with the number of queries.

    Args:
        metrics: jobs of each scraped metric.
        recorded: names that recording rules write.
        parts: jobs of names that metrics could have too; only selections of exactly such a name read them.

    Attributes:
        uses: readers of each metric of a job.
        used_records: names of recording rules that are read.
        broad: queries that do not name each metric that they read.
        labels: of labels, the queries that read all their values.
        read_in_some_job: metrics that are read in certain jobs, which may have no series of them at the moment.
    """

    def __init__(
        self,
        metrics: Mapping[str, Iterable[str]],
        recorded: Iterable[str] = (),
        parts: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._jobs = {name: tuple(jobs) for name, jobs in metrics.items()}
        self._parts = {name: tuple(jobs) for name, jobs in (parts or {}).items()}
        self._recorded = frozenset(recorded)
        self._names = (*self._jobs, *(self._recorded - self._jobs.keys()))
        self._matched: dict[Selection, tuple[str, ...]] = {}
        self.uses: dict[Pair, Use] = {}
        self.used_records: set[str] = set()
        self.broad: list[Broad] = []
        self.labels: dict[str, dict[str, Broad]] = {}
        self._seen: dict[Selection, int] = {}
        self.read_in_some_job: set[str] = set()

    def add(self, query: Query, source: str, text: str) -> None:
        """Record what a query reads."""
        for selection in query.selections:
            if selection.label:
                self.labels.setdefault(selection.label, {}).setdefault(text, Broad(source, text, query.doubt))
                continue
            broad = selection.exact is None or bool(query.doubt)
            if broad and selection in self._seen:
                self.broad[self._seen[selection]].others += 1
                continue
            names = self.names(selection)
            if not names:
                continue
            number = self._number(Broad(source, text, query.doubt)) if broad else -1
            if broad and len(self._seen) < _CACHE_MAX:
                self._seen[selection] = number
            for name in names:
                self._use(name, selection, source, number)

    def add_names(self, names: Iterable[str], broad: Broad) -> None:
        """Record that a broad query reads these metrics in all jobs."""
        number = self._number(broad)
        for name in names:
            self._use(name, EVERYTHING, broad.source, number)

    def _number(self, broad: Broad) -> int:
        """Return the number of a broad query; after very many, that of all others together."""
        if self.broad and (self.broad[-1].source, self.broad[-1].text) == (broad.source, broad.text):
            return len(self.broad) - 1
        if len(self.broad) > _BROAD_MAX:
            self.broad[-1].others += 1
        elif len(self.broad) == _BROAD_MAX:
            self.broad.append(Broad("many places", "(many other queries)", broad.doubt))
        else:
            self.broad.append(broad)
        return len(self.broad) - 1

    def _use(self, name: str, selection: Selection, source: str, number: int) -> None:
        if name in self._recorded:
            self.used_records.add(name)
        if selection.job:
            self.read_in_some_job.add(name)
        for job in self._jobs_read(name, selection):
            use = self.uses.setdefault((name, job), Use())
            if number >= 0:
                if len(use.broad) < _BROAD_EACH_MAX and number not in use.broad:
                    use.broad.append(number)
                continue
            use.readers += 1
            if len(use.sources) < _SOURCES_MAX and source not in use.sources:
                use.sources.append(source)

    def _jobs_read(self, name: str, selection: Selection) -> Iterator[str]:
        jobs = self._jobs.get(name, ())
        if selection.exact is not None:
            jobs += self._parts.get(name, ())
        return filter(selection.reads_job, jobs)

    def names(self, selection: Selection) -> tuple[str, ...]:
        """Return the known names that a selection reads, scraped or recorded."""
        exact = selection.exact
        if exact is not None:
            known = exact in self._jobs or exact in self._parts or exact in self._recorded
            return (exact,) if known and selection.reads_name(exact) else ()
        key = Selection(selection.name)
        if key not in self._matched:
            if len(self._matched) >= _CACHE_MAX:
                self._matched.clear()
            self._matched[key] = tuple(each for each in self._names if selection.reads_name(each))
        return self._matched[key]

    def pairs(self, selections: Iterable[Selection]) -> set[Pair]:
        """Return metrics with jobs that selections read."""
        return {
            (name, job)
            for selection in selections
            for name in self.names(selection)
            for job in self._jobs_read(name, selection)
        }
