"""Issue 17, A1: a result is reduced to distinct label sets of what its selectors match."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.telemetry.promql.expression import parse_expression
from muster.telemetry.promql.kept import ALL, NOTHING, Kept, kept_only, kept_without
from muster.telemetry.promql.result import Result

NAME = "__name__"


def parts(text: str) -> list[Kept]:
    return [each.kept for each in parse_expression(text).parts]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x", ALL),
        ("last_over_time(x[5m])", ALL),
        ("x > 1", ALL),
        ("x offset 1h", ALL),
        ("-x", kept_without([NAME])),
        ("x > bool 1", kept_without([NAME])),
        ("x * 2", kept_without([NAME])),
        ("2 * scalar(sum(y)) * x", kept_without([NAME])),
        ("rate(x[5m])", kept_without([NAME])),
        ("max_over_time(x[1h:1m])", kept_without([NAME])),
        ("sum(x)", NOTHING),
        ("sum by (b, a) (rate(x[5m]))", kept_only("ab")),
        ("sum by (a) (max by (a, b) (x))", kept_only("a")),
        ("sum by (c) (max by (a, b) (x))", NOTHING),
        ("sum by (a) (max without (a) (x))", NOTHING),
        ("sum without (a) (max by (a, b) (x))", kept_only("b")),
        ("sum without (a) (max without (b) (x))", kept_without([NAME, "a", "b"])),
        ("count by (__name__) (x)", kept_only([NAME])),
        ("count by (__name__) (rate(x[5m]))", NOTHING),
        ("histogram_quantile(0.9, x)", kept_without([NAME, "le"])),
        ("histogram_quantile(0.9, sum by (a, le) (x))", kept_only("a")),
        ("count_values('v', x)", ALL),
        ("count_values by (a) ('v', x)", ALL),
        ("sum by (a) (count_values by (a, b) ('v', x))", kept_only("a")),
        ("sum(count_values('v', x))", NOTHING),
        ("clamp_max(x, 5)", kept_without([NAME])),
        ("quantile by (a) (0.5, x)", kept_only("a")),
    ],
)
def test_labels_that_remain_of_a_selector(text: str, kept: Kept) -> None:
    assert parts(text)[-1] == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("sum by (d) (label_replace(x, 'd', '$1', 's', '(.*)'))", kept_only("ds")),
        ("sum by (d) (label_join(x, 'd', '-', 's', 't'))", kept_only("dst")),
        ("sum by (a) (label_replace(x, 'd', '$1', 's', '(.*)'))", kept_only("a")),
        ("sum without (s) (label_replace(x, 'd', '$1', 's', '(.*)'))", kept_without([NAME])),
        ("sum without (s, d) (label_replace(x, 'd', '$1', 's', '(.*)'))", kept_without([NAME, "s", "d"])),
    ],
)
def test_labels_that_a_function_writes_depend_on_their_sources(text: str, kept: Kept) -> None:
    assert parts(text) == [kept]


@pytest.mark.parametrize(
    ("text", "kind", "kept"),
    [
        ("x / y", "least", [kept_without([NAME])] * 2),
        ("x / on (a) y", "least", [kept_only("a")] * 2),
        ("x / ignoring (a) y", "least", [kept_without([NAME, "a"])] * 2),
        ("x == on (a) y", "least", [kept_only("a")] * 2),
        ("x * on (a) group_left () y", "selected", [kept_without([NAME])]),
        ("y * on (a) group_right () x", "selected", [kept_without([NAME])]),
        ("sum by (a) (x * on (b) group_left () y)", "selected", [kept_only("a")]),
        ("sum by (c) (x * on (b) group_left (c) y)", "selected", [kept_only("b")]),
        ("sum by (a, c) (x * on (b) group_left (c) y)", "selected", [kept_only("ab")]),
        ("sum by (c) (x * ignoring (b) group_left (c) y)", "selected", [ALL]),
        ("sum without (b) (x * on (b) group_left (c) y)", "selected", [kept_without([NAME, "c"])]),
        ("x or y", "sum", [ALL, ALL]),
        ("x unless y", "selected", [ALL]),
        ("x and on (a) y", "selected", [ALL]),
        ("sum by (a) (x or rate(y[5m]))", "sum", [kept_only("a")] * 2),
        ("topk(5, x)", "top", [ALL]),
        ("topk by (a) (5, x)", "top", [ALL, kept_only("a")]),
        ("topk(scalar(y), x)", "selected", [ALL]),
        ("topk(NaN, x)", "selected", [ALL]),
        ("absent(x)", "one", []),
        ("vector(1)", "one", []),
        ("1 + time()", "one", []),
    ],
)
def test_joins_and_tops_combine_what_remains_of_their_sides(text: str, kind: str, kept: list[Kept]) -> None:
    found = parse_expression(text)
    assert (found.result.kind, [each.kept for each in found.parts]) == (kind, kept)


def test_join_takes_the_many_side() -> None:
    (left,) = parse_expression("x * on (a) group_left () y").parts
    (right,) = parse_expression("x * on (a) group_right () y").parts
    assert (left.selector, right.selector) == (0, 1)


@pytest.mark.parametrize(
    ("text", "floats"),
    [
        ("x", False),
        ("sum by (a) (rate(x[5m]))", False),
        ("histogram_quantile(0.9, x)", True),
        ("histogram_count(sum by (a) (x))", True),
        ("count by (a) (x)", True),
        ("topk(5, x)", True),
        ("x > 1", True),
        ("x or count by (a) (x)", False),
    ],
)
def test_native_histograms_are_followed_to_the_result(text: str, floats: bool) -> None:
    assert parse_expression(text).parts[0].floats is floats


def test_nested_tops_do_not_double() -> None:
    text = "x"
    for _ in range(60):
        text = f"topk by (a) (3, {text})"
    assert len(parse_expression(text).parts) == 2


LABELS = ("a", "b", "c")
VALUES = ("0", "1", "2")
SERIES = [dict(zip(LABELS, each, strict=True)) for each in product(VALUES, repeat=3)]


def grouped(series: list[dict[str, str]], labels: list[str], by: bool) -> list[dict[str, str]]:
    found = [{name: value for name, value in each.items() if (name in labels) == by} for each in series]
    return [dict(each) for each in {tuple(sorted(each.items())) for each in found}]


names = st.lists(st.sampled_from([*LABELS, "d"]), max_size=3, unique=True)
steps = st.lists(st.tuples(st.booleans(), names), min_size=1, max_size=4)


@settings(max_examples=100)
@given(steps, st.lists(st.sampled_from(SERIES), min_size=1, max_size=12, unique_by=lambda each: tuple(each.values())))
def test_nested_aggregations_have_as_many_series_as_distinct_sets(
    steps: list[tuple[bool, list[str]]], series: list[dict[str, str]]
) -> None:
    text, expected = "x", series
    for by, labels in steps:
        text = f"sum {'by' if by else 'without'} ({','.join(labels)}) ({text})"
        expected = grouped(expected, labels, by)
    (kept,) = parts(text)
    found = {tuple(sorted((name, value) for name, value in each.items() if name in kept)) for each in series}
    assert len(found) == len(expected)


def test_selected_parts_are_those_of_the_tree() -> None:
    def walk(result: Result) -> Iterator[Result]:
        yield result
        for each in result.inner:
            yield from walk(each)

    found = parse_expression("topk by (a) (2, x / y) or sum by (b) (z)")
    assert list(found.parts) == [each for each in walk(found.result) if each.kind == "selected"]
    assert {each.selector for each in found.parts} == {0, 1, 2}
