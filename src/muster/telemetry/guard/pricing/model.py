"""From counts and windows to a price. Pure.

The constants were measured with Prometheus 2.42 and 3.16 (40,000 series of 100 pods a target, 15 s interval):
points of results take 24 and 16 bytes, an open series 1.5 and 0.6 kB, a point in an answer 26 bytes. The server builds
the whole answer in memory, with up to three copies while its buffer grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from muster.telemetry.guard.pricing.answers import Size, size_of
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.count import DEFAULT_INTERVAL_S, Count
from muster.telemetry.guard.pricing.details import Listed
from muster.telemetry.guard.pricing.head import Head
from muster.telemetry.guard.pricing.labelsets import LabelSets
from muster.telemetry.guard.pricing.price import FIXED_BYTES, Price
from muster.telemetry.guard.pricing.windows import Window, constant_windows, steps
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.promql.kept import ALL, Kept, kept_only
from muster.telemetry.promql.matcher import NAME_LABEL
from muster.telemetry.promql.result import Result

LABEL_SET_BYTES: Final = 200.0
"""Of the labels of one series, if the server shows no sizes."""
UNSEEN_MARGIN: Final = 1.25
"""How much longer than the mean of the server the label sets of a selector are taken to be, unless some were seen."""
LABEL_BYTES: Final = 35
"""Of one label."""
SERIES_BYTES: Final = 22
"""Of a series in the answer to a query, beside labels and points."""
ANSWER_BYTES: Final = 64
"""Of an answer without results."""
SERIES_MARGIN: Final = 3
POINT_ANSWER_BYTES: Final = 26
VALUE_ANSWER_BYTES: Final = 25
TARGET_ANSWER_BYTES: Final = 2500
"""Of a pod with its labels and annotations as discovered."""
READ_BYTES: Final = 16
"""Of one sample in the answer of a remote read."""
ANSWER_COPIES: Final = 4
TOUCHED_SAMPLES: Final = 50
"""What it costs to look at a series without opening it, for labels and label values, in samples."""
_LABEL_NAMES: Final = 50


class Memory(msgspec.Struct, frozen=True):
    """Bytes that a server allocates.

    Attributes:
        point_bytes: for a point of a result.
        series_bytes: for an open series.
    """

    point_bytes: int
    series_bytes: int


OLD: Final = Memory(24, 1500)
MODERN: Final = Memory(16, 600)


class Matched(msgspec.Struct, frozen=True):
    """What is known about one selector.

    Attributes:
        window: when it is read.
        counts: at instants of the window, the oldest first; one at least.
        churn: how many series end in an hour and are replaced, for each that is active.
        covered: part of the window in which the server can have samples.
        distinct: number of distinct sets of these labels, at the newest instant. Not all that are needed are there.
        label_sets: how long its label sets are, None if unknown.
        alike: whether all its series are of one metric, so they have the same labels.
    """

    window: Window
    counts: tuple[Count, ...]
    churn: float = 0.0
    covered: float = 1.0
    distinct: Mapping[Kept, int] = {}
    label_sets: LabelSets | None = None
    alike: bool = False


def price_of(
    operation: Operation,
    matched: Sequence[Matched],
    head: Head | None,
    capabilities: Capabilities,
    listed: Listed | None = None,
) -> Price:
    """Return the price of an operation.

    Args:
        operation: to price.
        matched: one for each selector.
        head: the head block, None if the server does not show it.
        capabilities: of the server.
        listed: what a probe got of the values or names that the operation asks for.
    """
    memory = MODERN if capabilities.limits_metadata else OLD
    values = _values(head)
    whole_bytes = LABEL_SET_BYTES
    if head is not None and head.label_bytes is not None:
        whole_bytes = head.label_bytes * UNSEEN_MARGIN
    match operation.kind:
        case "query" | "query_range":
            return _query(operation, matched, values, whole_bytes, memory, capabilities.limits_queries)
        case "series" | "federate":
            return _series(operation, matched, whole_bytes, memory)
        case "label_values":
            return _label_values(operation, matched, values, listed)
        case "labels":
            return _labels(matched, _names(head), listed)
        case "remote_read":
            return _remote_read(matched, whole_bytes, memory)
        case "targets":
            return _targets(operation, matched)
        case "metadata":
            names = len(head.by_name.counts) if head is not None and head.by_name.complete else values(NAME_LABEL)
            return _listed(names or 0, VALUE_ANSWER_BYTES, "bounded" if names is not None else "guess")
    return Price(known="guess", memory_bytes=FIXED_BYTES, answer_bytes=FIXED_BYTES)


def _values(head: Head | None) -> Callable[[str], int | None]:
    return (lambda label: head.values.bound(label)) if head is not None else (lambda _: None)


def _query(
    operation: Operation,
    matched: Sequence[Matched],
    values: Callable[[str], int | None],
    whole_bytes: float,
    memory: Memory,
    limited: bool,
) -> Price:
    expression, outer = operation.expression, steps(operation)
    assert expression is not None
    series = [total_series(each) for each in matched]
    active = [_active(each) for each in matched]
    constants = constant_windows(operation)
    samples = sum(_samples(each) for each in matched) + sum(max(each.evaluations, each.reads) for each in constants)
    points = sum(number * each.window.evaluations for number, each in zip(active, matched, strict=True))
    points += sum(each.evaluations for each in constants)
    one = Size(1, 1, LABEL_BYTES, POINT_ANSWER_BYTES)
    size = size_of(expression.result, lambda part: _size(matched[part.selector], part, values, whole_bytes), one)
    results = size.series
    answer_points = (results if outer == 1 else size.active) * outer
    if operation.limit is not None and limited and results > operation.limit:
        answer_points *= operation.limit / results
        results = operation.limit
    if expression.matrix and matched:
        answer_points = samples if matched[0].window.range_s else points
        points = max(points, int(answer_points))
    series_bytes = size.label_bytes + SERIES_BYTES + expression.written_bytes
    answer_bytes = int(ANSWER_BYTES + results * series_bytes + answer_points * size.point_bytes)
    evaluations = [outer, *(each.window.evaluations for each in matched), *(each.evaluations for each in constants)]
    return Price(
        series=sum(series),
        samples=samples,
        steps=max(evaluations),
        range_s=_range(matched),
        answer_bytes=answer_bytes,
        memory_bytes=points * memory.point_bytes
        + sum(series) * (memory.series_bytes + expression.written_bytes)
        + answer_bytes * ANSWER_COPIES
        + FIXED_BYTES,
        known=_known(matched),
    )


def _size(matched: Matched, part: Result, values: Callable[[str], int | None], whole_bytes: float) -> Size:
    """Return the size of a part of a result: the distinct label sets of one selector."""
    active, kept, window = _active(matched), part.kept, matched.window
    sets = matched.distinct.get(kept)
    if sets is None:
        sets = _most_sets(kept, active, values)
    total = total_series(matched)
    series = sets * total / active if active else 0.0
    if kept.only:
        series = min(series, max(_most_sets(kept, total, values), sets))
    share = _mean(matched.counts) / active * matched.covered if active else 1.0
    again = 1 + matched.churn * min(window.range_s, window.span_s) / 3600
    sizes = matched.label_sets
    point_bytes = sizes.histogram_bytes if sizes is not None and not part.floats else 0.0
    return Size(
        series,
        min(series, sets * share * again),
        _label_bytes(kept, sizes, whole_bytes),
        point_bytes or POINT_ANSWER_BYTES,
    )


def _label_bytes(kept: Kept, sizes: LabelSets | None, whole_bytes: float) -> float:
    if sizes is not None:
        return sizes.bytes_of(kept)
    return min(LABEL_BYTES * len(kept.labels), whole_bytes) if kept.only else whole_bytes


def _most_sets(kept: Kept, series: int, values: Callable[[str], int | None]) -> int:
    """Return how many distinct sets of these labels so many series can have."""
    if not kept.only:
        return math.ceil(series / max(values("le") or 1, 1)) if "le" in kept.labels else series
    sets = 1
    for label in kept.labels:
        found = values(label)
        sets = min(series, sets * found) if found is not None else series
    return min(series, sets)


def _series(operation: Operation, matched: Sequence[Matched], whole_bytes: float, memory: Memory) -> Price:
    series = sum(total_series(each) for each in matched)
    answer_bytes = _series_bytes(matched, whole_bytes)
    return Price(
        series=series,
        samples=series if operation.kind == "federate" else 0,
        range_s=_range(matched),
        items=series if operation.kind == "series" else 0,
        answer_bytes=answer_bytes,
        memory_bytes=series * memory.series_bytes + answer_bytes * ANSWER_COPIES + FIXED_BYTES,
        known=_known(matched),
    )


def _series_bytes(matched: Sequence[Matched], whole_bytes: float) -> int:
    return int(
        sum(total_series(each) * (_label_bytes(ALL, each.label_sets, whole_bytes) + SERIES_MARGIN) for each in matched)
    )


def _names(head: Head | None) -> int:
    """Return the number of label names, or a guess."""
    return len(head.values.counts) if head is not None and head.values.complete else _LABEL_NAMES


def _label_values(
    operation: Operation,
    matched: Sequence[Matched],
    values: Callable[[str], int | None],
    listed: Listed | None,
) -> Price:
    label = operation.label
    items, item_bytes = values(label), float(VALUE_ANSWER_BYTES)
    if listed is not None:
        item_bytes = listed.item_bytes or item_bytes
        if listed.complete:
            items = listed.items
    if matched:
        touched = sum(_size(each, Result("selected", kept=kept_only((label,))), values, 0).series for each in matched)
        items = int(touched) if items is None else min(items, int(touched))
        sizes = [each.label_sets for each in matched if each.label_sets is not None]
        lengths = [each.values[label] for each in sizes if label in each.values]
        item_bytes = max(lengths) + SERIES_MARGIN if lengths else item_bytes
    return _of_labels(matched, items or 0, item_bytes)


def _labels(matched: Sequence[Matched], names: int, listed: Listed | None) -> Price:
    item_bytes = float(VALUE_ANSWER_BYTES)
    if listed is not None:
        names, item_bytes = max(listed.items, 0 if listed.complete else names), listed.item_bytes or item_bytes
    if matched and all(each.label_sets is not None and each.alike for each in matched):
        seen = {label for each in matched if each.label_sets is not None for label in each.label_sets.values}
        names = min(names, len(seen))
    return _of_labels(matched, names, item_bytes)


def _of_labels(matched: Sequence[Matched], items: int, item_bytes: float) -> Price:
    touched = sum(total_series(each) for each in matched)
    priced = _listed(items, item_bytes, "bounded" if items or matched else "guess")
    return msgspec.structs.replace(priced, samples=touched * TOUCHED_SAMPLES, range_s=_range(matched))


def _targets(operation: Operation, matched: Sequence[Matched]) -> Price:
    """A target is listed with its labels before relabelling. Dropped ones are not counted anywhere: assume as many."""
    only_active = ("state", "active") in operation.parameters
    targets = sum(_active(each) for each in matched) * (1 if only_active else 2)
    answer_bytes = targets * TARGET_ANSWER_BYTES
    return Price(
        items=targets,
        answer_bytes=answer_bytes,
        memory_bytes=answer_bytes * ANSWER_COPIES + FIXED_BYTES,
        known="guess",
    )


def _listed(items: int, item_bytes: float, known: Literal["bounded", "guess"]) -> Price:
    answer_bytes = int(items * item_bytes)
    return Price(
        items=items, answer_bytes=answer_bytes, memory_bytes=answer_bytes * ANSWER_COPIES + FIXED_BYTES, known=known
    )


def _remote_read(matched: Sequence[Matched], whole_bytes: float, memory: Memory) -> Price:
    series = sum(total_series(each) for each in matched)
    samples = sum(_samples(each) for each in matched)
    answer_bytes = samples * READ_BYTES + _series_bytes(matched, whole_bytes)
    return Price(
        series=series,
        samples=samples,
        range_s=_range(matched),
        answer_bytes=answer_bytes,
        memory_bytes=series * memory.series_bytes + samples * memory.point_bytes + answer_bytes * 2 + FIXED_BYTES,
        known=_known(matched),
    )


def _active(matched: Matched) -> int:
    """Series at one instant: the greatest count."""
    return max((each.series for each in matched.counts), default=0)


def total_series(matched: Matched) -> int:
    """Return the series of the whole window, with those that ended and began in it."""
    hours = matched.window.span_s * matched.covered / 3600
    return int(_active(matched) * (1 + matched.churn * hours))


def _samples(matched: Matched) -> int:
    window = matched.window
    exact = [each for each in matched.counts if each.counted_interval]
    interval_s = exact[-1].interval_s if exact else DEFAULT_INTERVAL_S
    each_counts = matched.label_sets.samples if matched.label_sets is not None else 1.0
    per_evaluation = max(each_counts, window.range_s / interval_s)
    # The server counts what the subquery reads or what the function around it reads, by its version.
    per_series = max(window.evaluations * per_evaluation, window.reads)
    return int(_mean(matched.counts) * per_series * matched.covered)


def _mean(counts: Sequence[Count]) -> float:
    """Mean over the window by the trapezoidal rule; the counts are evenly spaced."""
    if len(counts) < 2:
        return float(counts[0].series) if counts else 0.0
    inner = sum(each.series for each in counts[1:-1])
    return (counts[0].series / 2 + inner + counts[-1].series / 2) / (len(counts) - 1)


def _range(matched: Sequence[Matched]) -> float:
    return max((each.window.span_s for each in matched), default=0.0)


def _known(matched: Sequence[Matched]) -> Literal["exact", "bounded", "guess"]:
    counts = [each for one in matched for each in one.counts]
    if all(each.exact for each in counts):
        return "exact" if all(each.counted_interval or not each.series for each in counts) else "guess"
    return "bounded"
