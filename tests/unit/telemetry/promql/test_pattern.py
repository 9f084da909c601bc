"""Issue 17, A: patterns of callers are never run by a backtracking engine, and match no less than RE2 matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.promql.pattern import MAX_CHARACTERS, Pattern


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ("a", ("a",)), ("a|b|a", ("a", "b")), ("", ("",)), ("a||b", ("a", "", "b")),
        ("(a|b)c(d|e)", ("acd", "ace", "bcd", "bce")),
        (r"10\.0\.0\.1:9100|h-2", ("10.0.0.1:9100", "h-2")), ("^(?:a|b)$", ("a", "b")),
        ("^ab$", ("ab",)), ("a.b", None), ("a|b.*", None),
        ("(?i)a", None), ("a{2}", None), ("[ab]", None), (r"\d", None), ("a)", None), ("(a", None),
        (r"a\Q.\E", None),
    ],
)  # fmt: skip
def test_literals_are_a_list_only_where_nothing_else_matches(text: str, literals: tuple[str, ...] | None) -> None:
    assert Pattern.of(text).literals == literals


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("node_.*", "node_cpu", True), ("node_.*", "go_x", False),
        (".*foo.*", "a_foo_b", True), (".*foo.*", "bar", False),
        (".+", "", False), (".+", "a", True), (".*", "", True), ("a.c", "abc", True), ("a.c", "ac", False),

        ("[a-z]+_total", "x_total", None), ("[a-z]+_total", "x_sum", False), ("(?i)x", "y", None), ("a?b", "b", None),
        (".*", "a\nb", None), ("a.*b.*c", "a1b2b3c", True), ("a.+", "a", False),
    ],
)  # fmt: skip
def test_match_is_certain_only_where_the_pattern_is_understood(text: str, value: str, expected: bool | None) -> None:
    assert Pattern.of(text).matches(value) is expected


piece = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        ".",
        ".*",
        ".+",
        "a?",
        "b*",
        "[ab]",
        "[^a]",
        r"\.",
        "(a|b)",
        "(?:ab|)",
        "(a.*|b)",
        "a{2}",
        "|",
        "^",
        "$",
        "",
    ]
)


@settings(max_examples=300)
@given(st.lists(piece, max_size=6).map("".join), st.text("ab.", max_size=6))
def test_pattern_never_excludes_a_value_that_matches(text: str, value: str) -> None:
    try:
        expected = re.compile(text).fullmatch(value) is not None
    except re.error:
        return
    found = Pattern.of(text).matches(value)
    assert found is None or found == expected
    literals = Pattern.of(text).literals
    assert literals is None or (value in literals) == expected


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "(a|b)" * 3000,
        "(a|b|c|d|e)" * 12,
        "a|" * 20_000,
        "(((a|b)|c)|d)" * 1000,
        "(.*a){1000}",
        "x" * (MAX_CHARACTERS + 1),
    ],
)
def test_gigantic_pattern_can_match_everything(text: str) -> None:
    assert Pattern.of(text).matches("anything") is None


def test_long_list_of_instances_stays_a_list() -> None:
    hosts = [f"gpu-{each}:9100" for each in range(2000)]
    assert Pattern.of("|".join(hosts)).literals == tuple(hosts)


@pytest.mark.parametrize(
    ("matcher", "value", "expected"),
    [
        (Matcher("a", "=", ""), "", True), (Matcher("a", "!=", ""), "", False), (Matcher("a", "=~", "a.*"), "", False),
        (Matcher("a", "!~", ".*"), "x", False),
        (Matcher("a", "!~", ".+"), "", True), (Matcher("a", "!~", "[x]"), "x", True),
        (Matcher("a", "=~", "[x]"), "y", True), (Matcher("a", "!~", "x|y"), "x", False),
    ],
)  # fmt: skip
def test_matcher_matches_whatever_it_could_match(matcher: Matcher, value: str, expected: bool) -> None:
    assert matcher.matches(value) is expected
