"""The shape of an expression: what each node does to the series and labels below it."""

from __future__ import annotations

from typing import Literal

import msgspec

from muster.telemetry.promql.kept import ALL, Kept

Kind = Literal["scalar", "single", "selector", "function", "group", "top", "union", "left", "pair"]


class Shape(msgspec.Struct, frozen=True):
    """One node of an expression.

    Attributes:
        kind: `scalar`: a number without labels. `single`: one series. `function`: as many series as its greatest
            argument. `group`: an aggregation. `top`: `topk` and the like, which keep series as they are. `union`: `or`.
            `left`: `and` and `unless`. `pair`: arithmetic or comparison.
        selector: index of the selector in the expression.
        kept: labels of the argument that remain. For `top`: those that make the groups.
        k: greatest number of series of each group, for `top`; None for no limit.
        many: side of a pair that gives the series: `left` or `right`. None if both sides match one to one.
        written: the label that a function writes.
        sources: labels from which the written one is made. Of a pair with a many side: those that both sides share,
            None if unknown.
        copied: labels that a pair copies from its other side.
        floats: whether native histograms become numbers or are dropped.
        inner: the arguments.
    """

    kind: Kind
    selector: int = -1
    kept: Kept = ALL
    k: float | None = None
    many: Literal["left", "right"] | None = None
    written: str = ""
    sources: tuple[str, ...] | None = None
    copied: tuple[str, ...] = ()
    floats: bool = False
    inner: tuple[Shape, ...] = ()

    @property
    def is_scalar(self) -> bool:
        """Whether the value is a number without labels."""
        return self.kind == "scalar" or (self.kind == "pair" and all(each.is_scalar for each in self.inner))
