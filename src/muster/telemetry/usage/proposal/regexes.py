"""Short patterns that match exactly a set of names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from muster.telemetry.usage.inventory import re2_escaped

PATTERN_MAX: Final = 400
"""Characters of a pattern that people can still review. A single name may be longer."""
_DEPTH_MAX: Final = 2


class NamePattern(NamedTuple):
    """A pattern and the names that it matches; Prometheus anchors it."""

    pattern: str
    names: tuple[str, ...]


def patterns(names: Iterable[str], pattern_max: int = PATTERN_MAX) -> list[NamePattern]:
    """Return patterns that together match exactly these names. Common beginnings are written once."""
    found: list[NamePattern] = []
    for pattern, members in _groups(sorted(set(names)), pattern_max):
        joined = f"{found[-1].pattern}|{pattern}" if found else pattern
        if found and len(joined) <= pattern_max:
            found[-1] = NamePattern(joined, (*found[-1].names, *members))
        else:
            found.append(NamePattern(pattern, tuple(members)))
    return found


def _groups(names: Sequence[str], pattern_max: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield a pattern for the names with the same first word; for parts of them if it is too long."""
    for _, group in itertools.groupby(names, key=_first_word):
        yield from _fitting(list(group), pattern_max)


def _fitting(names: Sequence[str], pattern_max: int) -> Iterator[tuple[str, Sequence[str]]]:
    pattern = _factored(names, _DEPTH_MAX)
    if len(pattern) <= pattern_max or len(names) == 1:
        yield pattern, names
        return
    half = len(names) // 2
    yield from _fitting(names[:half], pattern_max)
    yield from _fitting(names[half:], pattern_max)


def _factored(names: Sequence[str], depth: int) -> str:
    """Return a pattern for sorted names: `node_(cpu|memory)_...` has its common beginning once."""
    if len(names) == 1 or not depth:
        return "|".join(map(re2_escaped, names))
    # The names are sorted, so what the first and the last one share, all share.
    common = sum(
        1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(names[0], names[-1], strict=False))
    )
    start = names[0][: names[0].rfind("_", 0, common) + 1]
    if start:
        rest = [each[len(start) :] for each in names]
        return f"{re2_escaped(start)}({_factored(rest, depth - 1)})"
    groups = [list(group) for _, group in itertools.groupby(names, key=_first_word)]
    return "|".join(_factored(each, depth) for each in groups) if len(groups) > 1 else _factored(names, 0)


def _first_word(name: str) -> str:
    return name.partition("_")[0]
