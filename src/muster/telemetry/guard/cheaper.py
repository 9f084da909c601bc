"""Cheaper forms of a request: what a client can ask instead. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec

from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.head import has_wide_reach
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.times import format_time
from muster.telemetry.promql.matcher import NAME_LABEL

_NAMES: Final = f"/api/v1/label/{NAME_LABEL}/values"
_ROUND_S: Final = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Steps that people use."""
_IS_TOP: Final = re.compile(r"\s*(top|bottom)k\b", re.IGNORECASE)
_FORM_CHARACTERS: Final = 2000


class Cheaper(msgspec.Struct, frozen=True):
    """What to ask instead.

    Attributes:
        advice: what to change, for people.
        form: a request that is cheaper, path and parameters; "" where only the client can narrow it.
    """

    advice: str
    form: str = ""


def narrower(operation: Operation) -> Cheaper:
    """For too many series, or an unknown price."""
    wide = any(has_wide_reach(each) for each in operation.selectors)
    names = Cheaper(f"add a metric name; {_NAMES} lists the names", _NAMES)
    if operation.kind in ("labels", "label_values"):
        if wide:
            return Cheaper("leave out match[], or add a metric name to it", operation.path)
        if operation.selectors:
            return Cheaper("add label matchers to match[]")
        return Cheaper("add match[] with a metric name") if operation.path == _NAMES else names
    if operation.kind == "targets":
        return Cheaper("ask for state=active and one scrapePool", f"{operation.path}?state=active")
    if wide:
        return names
    if operation.kind in ("query", "query_range"):
        return Cheaper("add label matchers, or query a recording rule that aggregates these series")
    return Cheaper("add label matchers")


def fewer_samples(operation: Operation, price: Price, limits: Limits) -> Cheaper:
    """For too many samples, or too much memory."""
    factor = max(price.samples / limits.max_samples, price.memory_bytes / limits.max_memory_bytes)
    if any(each.subqueries for each in operation.selectors):
        return Cheaper(f"make the step of the subquery {factor:.1f} times longer, or use a recording rule")
    if operation.kind == "query_range":
        step_s = _round_step(operation.step_s * factor)
        advice = f"use a step of {step_s} s, a range that is {factor:.1f} times shorter, or a recording rule"
        return Cheaper(advice, _form(operation, {"step": str(step_s)}))
    if operation.kind == "query" and any(each.range_s for each in operation.selectors):
        return Cheaper(f"use a range that is {factor:.1f} times shorter, or a recording rule")
    return narrower(operation)


def fewer_steps(operation: Operation, limits: Limits) -> Cheaper:
    """For too many points per series."""
    if any(each.subqueries for each in operation.selectors):
        return Cheaper("make the steps longer, also that of the subquery")
    if operation.start_s is None or operation.end_s is None:
        return Cheaper("use a longer step")
    step_s = _round_step((operation.end_s - operation.start_s) / max(limits.max_steps - 1, 1))
    return Cheaper(f"use a step of {step_s} s", _form(operation, {"step": str(step_s)}))


def shorter_range(operation: Operation, limits: Limits) -> Cheaper:
    """For a range that is too long."""
    back_s = max((each.range_s for each in operation.selectors), default=0.0) or operation.lookback_s
    if operation.kind in ("query_range", "series", "labels", "label_values") and limits.max_range_s > back_s:
        end_s = operation.end_s if operation.end_s is not None else operation.now_s
        span_s = limits.max_range_s - (back_s if operation.kind == "query_range" else 0.0)
        bounds = {"start": format_time(math.ceil(end_s - span_s)), "end": format_time(end_s)}
        if not any(each.subqueries or each.at is not None for each in operation.selectors):
            return Cheaper(f"start at {bounds['start']}", _form(operation, bounds))
    return Cheaper(f"use ranges of {limits.max_range_s:.0f} s at most")


def smaller_answer(operation: Operation) -> Cheaper:
    """For an answer that is too large."""
    if operation.kind in ("query", "query_range") and operation.expression is not None:
        form = f"topk(20, {operation.expression.text})"
        advice = "aggregate with sum by (...), or ask for the greatest series with topk"
        if _IS_TOP.match(operation.expression.text):
            return Cheaper("aggregate with sum by (...), or ask for fewer series")
        if operation.expression.matrix:
            return Cheaper("use a shorter range, or a function such as rate or max_over_time")
        return Cheaper(advice, _form(operation, {"query": form}))
    return narrower(operation)


def fewer_values(operation: Operation) -> Cheaper:
    """For too many label values or series, where the server does not honour `limit`."""
    if operation.kind == "label_values" and not operation.selectors:
        return Cheaper("add match[] with a metric name and labels")
    return narrower(operation)


def _round_step(step_s: float) -> int:
    return next((each for each in _ROUND_S if each >= step_s), math.ceil(step_s))


def _form(operation: Operation, changed: Mapping[str, str]) -> str:
    kept = [each for each in operation.parameters if each[0] not in changed]
    form = f"{operation.path}?{urlencode([*kept, *changed.items()])}"
    return form if len(form) <= _FORM_CHARACTERS else ""
