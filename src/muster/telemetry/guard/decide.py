"""Decides whether a priced request may be sent, and what is added to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from muster.telemetry.guard import cheaper
from muster.telemetry.guard.cheaper import Cheaper
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.capabilities import Capabilities, is_limited
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.windows import bounds, constant_windows, steps, windows
from muster.telemetry.guard.query.operation import TIMED, Operation
from muster.telemetry.guard.query.times import format_time

Reason = Literal[
    "too_many_series", "too_many_samples", "too_many_steps", "range_too_long", "answer_too_large", "too_much_memory",
    "too_many_values", "unknown_price",
]  # fmt: skip

REFUSED: Final = 422


class Allow(msgspec.Struct, frozen=True):
    """The request may be sent.

    Attributes:
        parameters: to send instead of those of the request.
        timeout_s: for the server.
        notes: what was changed, for the client.
    """

    parameters: tuple[tuple[str, str], ...]
    timeout_s: float
    notes: tuple[str, ...] = ()


class Refuse(msgspec.Struct, frozen=True):
    """The request is refused. The cheaper form is a candidate: `decide` may refuse it as well.

    Attributes:
        status: of HTTP.
        reason: which limit it exceeds.
        what: what happened, and why.
        advice: what to do next.
        price: of the request.
        limit: the value of that limit.
        cheaper: a form of the request that costs less, or "".
    """

    status: int
    reason: Reason
    what: str
    advice: str
    price: Price
    limit: float
    cheaper: str = ""

    @property
    def message(self) -> str:
        """What happened, why, and what to do next."""
        return f"{self.what}; {self.advice}"


def decide(operation: Operation, price: Price | None, limits: Limits, capabilities: Capabilities) -> Allow | Refuse:
    """Decide about a request.

    Args:
        operation: the request.
        price: its price, None if it is unknown: then the request is refused.
        limits: of the caller.
        capabilities: of the server.
    """
    if price is None:
        advice = cheaper.narrower(operation)
        what = "the request is refused: it is not known how many series it matches"
        return Refuse(REFUSED, "unknown_price", what, advice.advice, Price(known="guess"), 0, advice.form)
    for reason, value, limit, unit, advice in _excesses(operation, price, limits, capabilities):
        most = "up to " if price.known == "bounded" else ""
        what = f"the request is refused: it costs {most}{value:.0f} {unit}, the limit is {limit:.0f}"
        return Refuse(REFUSED, reason, what, advice.advice, price, limit, advice.form)
    return _allow(operation, limits, capabilities)


def _excesses(
    operation: Operation, price: Price, limits: Limits, capabilities: Capabilities
) -> Iterator[tuple[Reason, float, float, str, Cheaper]]:
    """Yield the limits that the price exceeds, with the value, the limit, its unit and advice."""
    seen = windows(operation, limits.added_range_s)
    span_s = max([_asked_s(operation, limits), price.range_s, *(each.span_s for each in seen)])
    evaluated = (*seen, *constant_windows(operation))
    points = max([steps(operation), price.steps, *(each.evaluations for each in evaluated)])
    series, items, answer, memory = price.series, price.items, price.answer_bytes, price.memory_bytes
    if is_limited(operation, capabilities):
        limit = _item_limit(operation, limits)
        answer, memory = math.ceil(answer * min(limit / max(series if items == 0 else items, 1), 1.0)), 0
        series, items = min(series, limit), min(items, limit)
    if span_s > limits.max_range_s:
        yield "range_too_long", span_s, limits.max_range_s, "s of time", cheaper.shorter_range(operation, limits)
    if points > limits.max_steps:
        yield "too_many_steps", points, limits.max_steps, "points a series", cheaper.fewer_steps(operation, limits)
    if series > limits.max_series:
        yield "too_many_series", series, limits.max_series, "series", cheaper.narrower(operation)
    if items > limits.max_label_values and operation.kind != "targets":
        yield "too_many_values", items, limits.max_label_values, "results", cheaper.fewer_values(operation)
    if price.samples > limits.max_samples:
        advice = cheaper.fewer_samples(operation, price, limits)
        yield "too_many_samples", price.samples, limits.max_samples, "samples", advice
    if answer > limits.max_answer_bytes:
        yield "answer_too_large", answer, limits.max_answer_bytes, "bytes of answer", cheaper.smaller_answer(operation)
    if memory > limits.max_memory_bytes:
        advice = cheaper.fewer_samples(operation, price, limits)
        yield "too_much_memory", memory, limits.max_memory_bytes, "bytes of memory", advice


def _asked_s(operation: Operation, limits: Limits) -> float:
    """Return the seconds between start and end; 0 for endpoints without times, such as rules or buildinfo."""
    if operation.kind not in TIMED:
        return 0.0
    start_s, end_s = bounds(operation, limits.added_range_s)
    return end_s - start_s


def _item_limit(operation: Operation, limits: Limits) -> int:
    return min(operation.limit or limits.max_label_values, limits.max_label_values)


def _allow(operation: Operation, limits: Limits, capabilities: Capabilities) -> Allow:
    timeout_s = min(operation.timeout_s or limits.timeout_s, limits.timeout_s)
    added: dict[str, str] = {}
    if operation.kind in ("query", "query_range"):
        added["timeout"] = format_time(timeout_s)
    elif operation.kind in ("series", "labels", "label_values", "exemplars"):
        start_s, end_s = bounds(operation, limits.added_range_s)
        added["start"], added["end"] = format_time(start_s), format_time(end_s)
        if capabilities.limits_metadata and operation.kind != "exemplars":
            added["limit"] = str(_item_limit(operation, limits))
    elif operation.kind == "metadata":
        added["limit"] = str(_item_limit(operation, limits))
    sent = dict(operation.parameters)
    kept = tuple(each for each in operation.parameters if each[0] not in added)
    notes = [f"{name}={value} was added" for name, value in added.items() if not sent.get(name)]
    if operation.limit and "limit" in added and int(added["limit"]) < operation.limit:
        notes.append(f"limit={added['limit']} replaces {operation.limit}")
    if operation.timeout_s and operation.timeout_s > timeout_s:
        notes.append(f"timeout={timeout_s:g} replaces {operation.timeout_s:g}")
    notes += [f"{name[:40]!a} was left out" for name in operation.ignored[:5]]
    return Allow((*kept, *added.items()), timeout_s, tuple(notes))
