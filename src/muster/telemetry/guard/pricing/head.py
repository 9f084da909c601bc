"""What `/api/v1/status/tsdb` says about the head block, as upper bounds for the series of a selector.

The lists are cut. A value that is not listed has at most as many series as the last one that is. If the list is
complete, it has none. Prometheus 2.42 lists 10 entries; since 2.45 a request can ask for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.promql.pattern import Pattern
from muster.telemetry.promql.selector import Selector

_MAX_GLOBS: Final = 20
"""Branches of a pattern that are compared with every listed name."""


class _Entry(msgspec.Struct, frozen=True):
    name: str
    value: int


class _HeadStats(msgspec.Struct, frozen=True, rename="camel"):
    num_series: int
    min_time: int = 0
    max_time: int = 0


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    head_stats: _HeadStats | None = None
    total_series: int | None = None
    series_count_by_metric_name: list[_Entry] = []
    label_value_count_by_label_name: list[_Entry] = []
    series_count_by_label_value_pair: list[_Entry] = []
    memory_in_bytes_by_label_name: list[_Entry] = []


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


class Listing(msgspec.Struct, frozen=True):
    """A list of the greatest counts.

    Attributes:
        counts: by name.
        rest: greatest count of a name that is not listed.
    """

    counts: Mapping[str, int]
    rest: int

    def bound(self, name: str) -> int:
        """The greatest possible count of this name."""
        return self.counts.get(name, self.rest)

    @property
    def complete(self) -> bool:
        """Whether every name is listed."""
        return self.rest == 0


class Head(msgspec.Struct, frozen=True):
    """The head block.

    Attributes:
        series: in it.
        min_time_s: Unix time of its oldest sample, 0 if unknown.
        max_time_s: of its newest sample, 0 if unknown.
        by_name: series by metric name.
        by_pair: series by `label=value`.
        values: number of values by label.
        label_bytes: that the label set of a series takes in an answer on average, None if unknown.
        having: greatest number of series that have a label, where the listed pairs show it.
    """

    series: int
    min_time_s: float
    max_time_s: float
    by_name: Listing
    by_pair: Listing
    values: Listing
    label_bytes: float | None = None
    having: Mapping[str, int] = {}

    def bound(self, selector: Selector) -> int:
        """The greatest number of series in the head that the selector can match."""
        return min(self.series, sum(self._group_bound(each) for each in selector.matchers))

    def exact(self, selector: Selector) -> int | None:
        """The number of series in the head, where the selector is one listed value; None for others."""
        if len(selector.matchers) != 1 or len(selector.matchers[0]) != 1:
            return None
        (matcher,) = selector.matchers[0]
        if matcher.op != "=":
            return None
        listing, name = self._entry(matcher.name, matcher.value)
        return listing.counts.get(name)

    def _entry(self, label: str, value: str) -> tuple[Listing, str]:
        return (self.by_name, value) if label == NAME_LABEL else (self.by_pair, f"{label}={value}")

    def _group_bound(self, group: Sequence[Matcher]) -> int:
        return min((self._matcher_bound(each) for each in group), default=self.series)

    def _matcher_bound(self, matcher: Matcher) -> int:
        values = matcher.literals
        if values is not None and "" not in values:
            found = sum(self._value_bound(matcher.name, each) for each in values)
        elif matcher.name == NAME_LABEL and matcher.op == "=~" and self.by_name.complete:
            found = self._pattern_bound(Pattern.of(matcher.value))
        elif not matcher.matches_empty:
            found = self.having.get(matcher.name, self.series)
        else:
            return self.series
        return min(found, self.series)

    def _value_bound(self, label: str, value: str) -> int:
        listing, name = self._entry(label, value)
        return listing.bound(name)

    def _pattern_bound(self, pattern: Pattern) -> int:
        if len(pattern.branches) > _MAX_GLOBS:
            return self.series
        return sum(count for name, count in self.by_name.counts.items() if pattern.matches(name) is not False)


def parse_head(body: bytes, asked: int) -> Head | None:
    """Return the head, or None if the answer does not have it. `asked` is the limit that was sent."""
    try:
        data = msgspec.json.decode(body, type=_Answer).data
    except msgspec.DecodeError:
        return None
    stats = data.head_stats
    series = stats.num_series if stats is not None else data.total_series
    if series is None or series < 0:
        return None
    pairs = _listing(data.series_count_by_label_value_pair, asked, series)
    values = _listing(data.label_value_count_by_label_name, asked, series)
    return Head(
        series=series,
        min_time_s=stats.min_time / 1000 if stats else 0.0,
        max_time_s=stats.max_time / 1000 if stats else 0.0,
        by_name=_listing(data.series_count_by_metric_name, asked, series),
        by_pair=pairs,
        values=values,
        label_bytes=_label_bytes(data.memory_in_bytes_by_label_name, series),
        having=_having(pairs, values),
    )


def _having(pairs: Listing, values: Listing) -> Mapping[str, int]:
    """Return for each label with a listed pair how many series have it at most. Values that are not listed are rare."""
    listed: dict[str, tuple[int, int]] = {}
    for pair, count in pairs.counts.items():
        label = pair.partition("=")[0]
        number, total = listed.get(label, (0, 0))
        listed[label] = number + 1, total + count
    found: dict[str, int] = {}
    for label, (number, total) in listed.items():
        missing = max(values.bound(label) - number, 0)
        if not missing or pairs.rest:  # a list that claims to be whole and lacks values shows nothing
            found[label] = total + missing * pairs.rest
    return found


_PAIR_BYTES: Final = 2
"""What the status adds to the name and value of a label."""
_MORE_BYTES: Final = 4
"""What an answer adds to that: quotes, colon and comma are 6."""
_LEAST_VALUE_BYTES: Final = 6
"""A label that takes less is taken to be on a part of the series only."""


def _label_bytes(entries: Sequence[_Entry], series: int) -> float | None:
    """Return the mean bytes of a label set.

    The status of new servers adds up the names and values of all series, by label. That of old ones (2.42) counts each
    value once, so the metric name takes less than a name has for each series.
    """
    sizes = {each.name: each.value / max(series, 1) for each in entries}
    if sizes.get(NAME_LABEL, 0.0) <= len(NAME_LABEL) + _PAIR_BYTES:
        return None
    having = {name: min(size / (len(name) + _LEAST_VALUE_BYTES), 1.0) for name, size in sizes.items()}
    return sum(sizes.values()) + sum(having.values()) * _MORE_BYTES


_DEFAULT_LIMIT: Final = 10


def _listing(entries: Sequence[_Entry], asked: int, series: int) -> Listing:
    """A list with exactly as many entries as a server can send is cut; an empty one says nothing."""
    counts = {each.name: each.value for each in entries}
    if not counts:
        return Listing(counts, series)
    cut = len(entries) in (asked, _DEFAULT_LIMIT)
    return Listing(counts, min(counts.values()) if cut else 0)


def has_wide_reach(selector: Selector) -> bool:
    """Return whether an alternative has no matcher that asks for listed values or for a literal text.

    Such a selector can match most series: `{le!=""}`, `{__name__=~".+"}`, `{a!~"x"}`.
    """
    return any(not any(_narrows(each) for each in group) for group in selector.matchers)


def _narrows(matcher: Matcher) -> bool:
    if matcher.op not in ("=", "=~") or matcher.matches_empty:
        return False
    branches = Pattern.of(matcher.value).branches if matcher.op == "=~" else ((matcher.value,),)
    return all(any(isinstance(each, str) for each in branch) for branch in branches)
