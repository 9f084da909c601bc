"""The series of a result, as distinct label sets of what the selectors match.

`sum by (pod) (rate(x[5m]))` has as many series as `x` has values of `pod`. So a result is reduced to its selectors,
each with the labels that remain of it, and to how their numbers are combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from muster.telemetry.promql.kept import ALL, NOTHING, Kept, kept_only, kept_without
from muster.telemetry.promql.shape import Shape


class Result(msgspec.Struct, frozen=True):
    """The series of a result.

    Attributes:
        kind: `one`: a single series. `selected`: the label sets of a selector. `most` and `least`: the part with the
            most or fewest series. `sum`: all parts. `top`: the first part, at most `k` for each series of the second.
        selector: index of the selector.
        kept: labels of its series that remain.
        k: of `top`.
        floats: whether native histograms of the selector arrive as numbers, or not at all.
        inner: the parts.
    """

    kind: Literal["one", "selected", "most", "least", "sum", "top"]
    selector: int = -1
    kept: Kept = ALL
    k: float = 0.0
    floats: bool = False
    inner: tuple[Result, ...] = ()

    @property
    def has_top(self) -> bool:
        """Whether a part is of kind `top`."""
        return self.kind == "top" or any(each.has_top for each in self.inner)

    def selected(self) -> Iterator[Result]:
        """Yield the parts of kind `selected`."""
        if self.kind == "selected":
            yield self
        for each in self.inner:
            yield from each.selected()


ONE = Result("one")


def result_of(shape: Shape, kept: Kept = ALL, floats: bool = False) -> Result:
    """Return the result of an expression.

    Args:
        shape: of the expression.
        kept: labels that the outer expression keeps.
        floats: whether the outer expression has no native histograms.
    """
    floats = floats or shape.floats
    match shape.kind:
        case "selector":
            return Result("selected", shape.selector, kept, floats=floats)
        case "function":
            kept = kept.then(shape.kept)
            if shape.written:
                kept = kept.before_writing(shape.written, shape.sources)
            vectors = [each for each in shape.inner if not each.is_scalar]
            return _combined("most", [result_of(each, kept, floats) for each in vectors])
        case "group":
            return result_of(shape.inner[0], kept.then(shape.kept), floats)
        case "top":
            return _top(shape, kept, floats)
        case "union":
            return _combined("sum", [result_of(each, kept, floats) for each in shape.inner])
        case "left":
            return result_of(shape.inner[0], kept, floats)
        case "pair":
            return _pair(shape, kept, floats)
    return ONE


def _top(shape: Shape, kept: Kept, floats: bool) -> Result:
    whole = result_of(shape.inner[0], kept, floats)
    if shape.k is None:
        return whole
    if shape.kept == NOTHING:
        return Result("top", k=shape.k, inner=(whole, ONE))
    if whole.has_top:  # the parts of a top within a top would double with each level
        return whole
    return Result("top", k=shape.k, inner=(whole, result_of(shape.inner[0], shape.kept, floats)))


def _pair(shape: Shape, kept: Kept, floats: bool) -> Result:
    left, right = shape.inner
    kept = kept.then(shape.kept)
    if left.is_scalar or right.is_scalar:
        return result_of(left if right.is_scalar else right, kept, floats)
    if shape.many is None:
        return _combined("least", [result_of(each, kept, floats) for each in (left, right)])
    return result_of(left if shape.many == "left" else right, _own(shape, kept), floats)


def _own(shape: Shape, kept: Kept) -> Kept:
    """Return the labels of the many side that decide these ones: what both sides share decides the copied labels."""
    if not any(each in kept for each in shape.copied):
        return kept
    if shape.sources is None:
        return ALL
    if kept.only:
        return kept_only({*kept.labels}.difference(shape.copied).union(shape.sources))
    return kept_without({*kept.labels, *shape.copied}.difference(shape.sources))


def _combined(kind: Literal["most", "least", "sum"], parts: list[Result]) -> Result:
    if not parts:
        return ONE
    return parts[0] if len(parts) == 1 else Result(kind, inner=tuple(parts))
