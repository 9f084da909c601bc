"""Issue 17, A: what an expression reads, and text that the native parser must not see."""

from __future__ import annotations

import contextlib

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.expression import parse_expression, parse_selector
from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.promql.selector import Selector, Subquery
from muster.telemetry.promql.shape import Shape
from muster.telemetry.promql.shapeof import shape_of
from muster.telemetry.promql.text import MAX_NESTING, quote

X = Matcher("__name__", "=", "x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", Selector(((X,),))),
        ("rate(x[5m] offset 1h)", Selector(((X,),), 300.0, 3600.0)),
        ("x offset -1m", Selector(((X,),), offset_s=-60.0)),
        ("x @ 1.5", Selector(((X,),), at=1.5)),
        ("rate(x[5m] @ end())", Selector(((X,),), 300.0, at="end")),
        ("x @ start()", Selector(((X,),), at="start")),
        ("max_over_time(x[1d:1m] offset 1h)", Selector(((X,),), subqueries=(Subquery(86400.0, 60.0, 3600.0),))),
        (
            "max_over_time(rate(x[5m])[1h:] @ 7)",
            Selector(((X,),), 300.0, subqueries=(Subquery(3600.0, None, at=7.0),)),
        ),
        ("{x='1' or y=~`a\\.b`}", Selector(((Matcher("x", "=", "1"),), (Matcher("y", "=~", "a\\.b"),)))),
        ('{"x"}', Selector(((X,),))),
        ('{"a.b"=~"c"}', Selector(((Matcher("a.b", "=~", "c"),),))),
        ('{"größe"="☺"}', Selector(((Matcher("größe", "=", "☺"),),))),
        ("holt_winters(x[5m], 0.5, 0.5)", Selector(((X,),), 300.0)),
    ],
)
def test_selector_carries_everything_that_decides_which_samples_it_reads(text: str, expected: Selector) -> None:
    assert parse_expression(text).selectors == (expected,)


def test_subqueries_are_listed_from_the_outermost() -> None:
    (found,) = parse_expression("max_over_time(sum_over_time(x[10m:1m])[1d:1h])").selectors
    assert [each.range_s for each in found.subqueries] == [86400.0, 600.0]


def test_every_operand_and_parameter_is_found() -> None:
    text = "topk(scalar(a), b) + on(l) group_left(m) (c unless d) or label_replace(-e, 'x', '$1', 'y', '(.*)')"
    found = parse_expression(text)
    assert [sorted(each.names() or ()) for each in found.selectors] == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert found.labels == {"l", "m"}
    assert found.functions >= {"topk", "scalar", "label_replace"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x", {"x"}),
        ('{__name__=~"a|b"}', {"a", "b"}),
        ('{__name__=~"a|b",__name__=~"(b|c)"}', {"b"}),
        ('{__name__=~"a.*"}', None),
        ('{le!=""}', None),
        ('{__name__!~"a|b",x="1"}', None),
        ('{__name__=~"|a",x="1"}', None),
        ('{__name__="a" or x="1"}', None),
        ('{__name__="a" or __name__="b"}', {"a", "b"}),
    ],
)
def test_names_are_known_only_where_no_other_name_can_match(text: str, names: set[str] | None) -> None:
    assert parse_selector(text).names() == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sum(",
        "{}",
        "x @ -5",
        "x @ # \n -5",
        "x @ 1e12",
        "x[1000000y]",
        'x{a=~"("}',
        "x{a='\ud800'}",
        "x[5m:0s]",
        "1 +",
    ],
)
def test_text_that_is_not_promql_is_a_bad_query(text: str) -> None:
    with pytest.raises(BadQuery):
        parse_expression(text)


@pytest.mark.parametrize("text", ["x[5m]", "sum(x)", "x offset 5m", "x @ 5", "1", "'x'"])
def test_match_takes_instant_selectors_only(text: str) -> None:
    with pytest.raises(BadQuery):
        parse_selector(text)


@pytest.mark.parametrize(
    "deep",
    ["(" * 20_000 + "x" + ")" * 20_000, "-" * 20_000 + "x", "+".join(["x"] * 20_000), " or ".join(["x"] * 9_000)],
)
def test_deep_expression_is_refused_before_it_overflows_the_stack_of_the_parser(deep: str) -> None:
    with pytest.raises(BadQuery, match="at most"):
        parse_expression(deep)


@pytest.mark.slow
def test_expression_as_deep_as_allowed_is_parsed() -> None:
    text = "(" * (MAX_NESTING - 1) + "x" + ")" * (MAX_NESTING - 1)
    assert len(parse_expression(text).selectors) == 1
    assert len(parse_expression("+".join(["x"] * 300)).selectors) == 300


def test_brackets_in_strings_and_comments_do_not_count() -> None:
    text = f'x{{a="{"(" * 1000}",b=~`{"[(]" * 500}`}} # {"(" * 1000}'
    assert len(parse_expression(text).selectors) == 1


@given(st.text(max_size=60) | st.text(list("x{}[]()=~!@'`#-1m:, "), max_size=20))
def test_any_text_is_parsed_or_a_bad_query(text: str) -> None:
    with contextlib.suppress(BadQuery):
        assert parse_expression(text).text == text


label = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
matcher = st.builds(
    Matcher, label, st.sampled_from(["=", "!="]), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)


@given(st.lists(matcher, max_size=4).map(lambda each: (X, *(one for one in each if one.name != "__name__"))))
def test_printed_selector_is_the_same_selector(group: tuple[Matcher, ...]) -> None:
    selector = Selector((group,))
    assert parse_selector(str(selector)) == selector


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_quoted_value_is_that_value_for_the_parser(value: str) -> None:
    assert promql_parser.parse(f"x{{a={quote(value)}}}").matchers.matchers[0].value == value


node = st.deferred(
    lambda: (
        st.sampled_from(["x", "y", "x{a='1'}", "3"])
        | st.builds("sum by (l) ({})".format, vector)
        | st.builds("topk(2, {})".format, vector)
        | st.builds("({} or {})".format, vector, vector)
        | st.builds("({} * on(l) group_left() {})".format, vector, vector)
    )
)
vector = st.deferred(lambda: node.filter(lambda text: text != "3"))


@pytest.mark.slow
@settings(max_examples=60)
@given(vector)
def test_every_selector_has_its_own_place_in_the_shape(text: str) -> None:
    found = parse_expression(text)
    numbers = [each.selector for each in _leaves(shape_of(promql_parser.parse(text)))]
    assert numbers == list(range(len(found.selectors)))


def _leaves(shape: Shape) -> list[Shape]:
    return [shape] if shape.kind == "selector" else [leaf for each in shape.inner for leaf in _leaves(each)]
