"""Patterns of drop rules: they match exactly the unused names, and stay short."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.usage.proposal.regexes import patterns

WORDS = st.sampled_from(["node", "cpu", "cpus", "total", "", "x:y", "a.b", "é", "a b", "(", "|"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map("_".join).filter(bool)


@given(st.sets(NAMES, min_size=1, max_size=60), st.sets(NAMES, max_size=60), st.sampled_from([1, 40, 400]))
def test_patterns_match_exactly_the_names(names: set[str], others: set[str], pattern_max: int) -> None:
    found = patterns(names, pattern_max)
    assert sorted(name for each in found for name in each.names) == sorted(names)
    for each in found:
        assert {name for name in names | others if re.fullmatch(f"(?:{each.pattern})", name)} == set(each.names)
        assert len(each.pattern) <= pattern_max or len(each.names) == 1


def test_common_beginnings_are_written_once() -> None:
    names = ["node_cpu_seconds_total", "node_cpu_guest_seconds_total", "node_disk_reads_total", "go_info"]
    assert [each.pattern for each in patterns(names)] == [
        "go_info|node_(cpu_(guest_seconds_total|seconds_total)|disk_reads_total)"
    ]


def test_many_names_need_few_patterns() -> None:
    names = [f"apiserver_part{n}_requests_total" for n in range(300)]
    found = patterns(names)
    assert len(found) <= 32
    assert max(len(each.pattern) for each in found) <= 400
