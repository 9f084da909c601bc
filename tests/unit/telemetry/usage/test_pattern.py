"""Patterns of names: the same as RE2, or unknown."""

from __future__ import annotations

import pytest

from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.usage.pattern import known, matches


def meets(pattern: str, value: str, negated: bool = False) -> bool:
    return matches(Matcher("__name__", "!~" if negated else "=~", pattern), value)


@pytest.mark.parametrize(
    ("pattern", "match", "others"),
    [
        ("a|b", ["a", "b"], ["ab", "", "a|b"]),
        ("node_.*", ["node_", "node_cpu"], ["anode_", "node"]),
        (".+_(total|sum)", ["a_total", "b_sum"], ["_total", "a_total_"]),
        ("(?i)UP", ["up", "Up"], ["ups"]),
        ("[a-c]{2}", ["ab"], ["abc", "a"]),
        ("[^_]+", ["cpu"], ["a_b"]),
        (r"a\.b", ["a.b"], ["a_b"]),
        ("(?P<x>a)b?", ["a", "ab"], ["b"]),
        ("a.b", ["a\nb"], ["ab"]),
        ("^a$", ["a"], ["a\n"]),
        ("", [""], ["a"]),
    ],
)
def test_known_pattern_is_anchored(pattern: str, match: list[str], others: list[str]) -> None:
    assert known(Matcher("__name__", "=~", pattern))
    assert [each for each in match + others if meets(pattern, each)] == match
    assert [each for each in match + others if meets(pattern, each, negated=True)] == others


@pytest.mark.parametrize(
    "pattern",
    [
        "[[:alpha:]]+",  # a class in RE2, other characters in Python
        r"\pL+",
        r"\Qa.b\E",
        r"a\z",
        "(a+)+b",  # would backtrack
        "(a|aa){1,30}b",
        ".*a.*b.*c.*d.*e.*f",
        "(?s).*",
        "a(",
        "[a",
        "[a--b]",
        "x" * 30_000 + ".*",
    ],
)
def test_other_pattern_can_match_everything(pattern: str) -> None:
    assert not known(Matcher("__name__", "=~", pattern))
    assert meets(pattern, "anything")
    assert meets(pattern, "anything", negated=True)
