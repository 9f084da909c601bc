"""Metrics of API servers: reads pages in the Prometheus text format, and compares two pages of one process."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

START = "process_start_time_seconds"
"""Distinguishes processes: replicas behind one address, and a process before and after its restart."""

RECENT_S = 600.0
"""Counters of a process that is younger than this describe the present."""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = ("_bucket", "_sum", "_count")
Labels = Mapping[str, str]


class Series(NamedTuple):
    """One time series: its labels, and a value or an increase."""

    labels: Labels
    value: float


@functools.lru_cache(maxsize=1 << 18)
def labels_of(text: str) -> Labels:
    """Parse the labels of a series, as they stand between the braces. Do not change the result: it is shared."""
    return dict(_LABEL.findall(text))


class Page(msgspec.Struct, frozen=True):
    """The wanted series of one page of metrics, by name and by the text of their labels (see `labels_of`).

    Labels are parsed only if a rule asks for them: a large page has hundreds of thousands of series.
    """

    series: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Iterator[Series]:
        """Yield the series of a metric."""
        for labels, value in self.series.get(name, {}).items():
            yield Series(labels_of(labels), value)

    @property
    def start(self) -> float:
        """The start time of the process, in seconds since 1970; 0 if not known."""
        return next(iter(self.series.get(START, {}).values()), 0.0)


def parse(text: str, families: Collection[str]) -> Page:
    """Read the series of some metric families from a page. Values that are not numbers are left out.

    Args:
        text: a page in the Prometheus text format.
        families: names of counters, gauges and histograms, without the suffixes of histograms.
    """
    series: dict[str, dict[str, float]] = {}
    for match in _line(frozenset(families)).finditer(text):
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isnan(value):
            series.setdefault(name, {})[labels or ""] = value
    return Page(series)


@functools.cache
def _line(families: frozenset[str]) -> re.Pattern[str]:
    names = "|".join(sorted(map(re.escape, {START, *families}), key=len, reverse=True))
    return re.compile(rf"^((?:{names})(?:{'|'.join(_SUFFIXES)})?)(?:\{{(.*)\}})?[ \t]+(\S+)", re.MULTILINE)


class Server(msgspec.Struct, frozen=True):
    """Two pages of one API server.

    Attributes:
        address: where it was asked.
        after: the newer page.
        before: the older page of the same process; None if the process started recently.
        seconds: time in which the increases happened.
    """

    address: str
    after: Page
    before: Page | None
    seconds: float

    def series(self, name: str) -> Iterator[Series]:
        """Return the newest values of a metric."""
        return self.after.of(name)

    def rates(self, name: str, *, unchanged: bool = False) -> Iterator[Series]:
        """Yield the increase per second of each series of a counter that has changed, or of all.

        A series that is new started at 0.
        """
        old = self.before.series.get(name, {}) if self.before is not None else {}
        for labels, value in self.after.series.get(name, {}).items():
            start = old.get(labels, 0.0)
            increase = value - start if value >= start else value  # a lower value: the counter was reset
            if increase or unchanged:
                yield Series(labels_of(labels), increase / self.seconds)


def compare(address: str, before: Page, after: Page, seconds: float, after_at: float) -> Server | None:
    """Compare two pages read from one address; None if another, older replica answered the second time.

    A process that started recently has counted since then, so its values are the increases since its start.

    Args:
        address: where both were read.
        before: the older page.
        after: the newer page.
        seconds: time between the readings, by a monotonic clock.
        after_at: when the newer page was read, in seconds since 1970.
    """
    if before.start == after.start:
        return Server(address, after, before, seconds)
    up_s = after_at - after.start
    return Server(address, after, None, max(up_s, seconds)) if up_s < RECENT_S else None
