"""What one selector of an expression reads: which series, and the windows of time around it."""

from __future__ import annotations

from typing import Literal

import msgspec

from muster.telemetry.promql.matcher import NAME_LABEL, Matcher

At = float | Literal["start", "end"]


class Subquery(msgspec.Struct, frozen=True):
    """A subquery around a selector: `[range:step] offset @ at`.

    Attributes:
        range_s: its range in seconds.
        step_s: its resolution, None for the server's evaluation interval.
        offset_s: seconds that it looks back, negative for forward.
        at: Unix time at which it is fixed, `start` or `end` of the request, or None.
    """

    range_s: float
    step_s: float | None
    offset_s: float = 0.0
    at: At | None = None


class Selector(msgspec.Struct, frozen=True):
    """A selector with everything that decides which samples it reads.

    Attributes:
        matchers: alternatives; each is a list of matchers that must all match. Prometheus has one alternative.
        range_s: range in seconds of a range selector, 0 for an instant selector.
        offset_s: seconds that it looks back, negative for forward.
        at: Unix time at which it is fixed, `start` or `end` of the request, or None.
        subqueries: the subqueries around it, the outermost first.
    """

    matchers: tuple[tuple[Matcher, ...], ...]
    range_s: float = 0.0
    offset_s: float = 0.0
    at: At | None = None
    subqueries: tuple[Subquery, ...] = ()

    def names(self) -> frozenset[str] | None:
        """The metric names that it can match, or None if they are not a list of literal names."""
        found: set[str] = set()
        for alternative in self.matchers:
            named = [each.literals for each in alternative if each.name == NAME_LABEL]
            lists = [set(each) for each in named if each is not None and "" not in each]
            if not lists:
                return None
            found |= set.intersection(*lists)
        return frozenset(found)

    def matches(self, labels: dict[str, str]) -> bool:
        """Return whether a series with these labels (`__name__` among them) can match."""
        return any(all(each.matches(labels.get(each.name, "")) for each in group) for group in self.matchers)

    def __str__(self) -> str:
        """The series alone, without range, offset and @: `{a="b"}`."""
        return "{" + " or ".join(",".join(map(str, group)) for group in self.matchers) + "}"
