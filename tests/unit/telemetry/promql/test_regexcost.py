"""Issue 17, A: regular expressions that would keep the parser, and so the whole guard, busy for seconds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.expression import parse_expression, parse_selector


def several(patterns: Iterable[str]) -> str:
    return " + ".join(f'x{{pod=~"{pattern}"}}' for pattern in patterns)


@pytest.mark.parametrize(
    "patterns",
    [
        [rf"\\pL{{1,{150 + number}}}" for number in range(49)],
        [rf"\\p{{Greek}}{{1,{150 + number}}}" for number in range(49)],
        [rf"\x5cpL{{1,{150 + number}}}" for number in range(49)],
        [rf"\134\160L{{1,{150 + number}}}" for number in range(49)],
        [rf"\u005cw{{1,{150 + number}}}" for number in range(49)],
        [r"\\pL" * 190 + str(number) for number in range(100)],
        [rf"[\\w-]{{{250 + number}}}" for number in range(49)],
        [rf"((a{{0,40}}){{0,40}}){{0,{number}}}" for number in range(5, 100)],
        [rf"(\\pL\\pN){{1,{150 + number}}}" for number in range(49)],
        ["(?:x{1,900}){1,900}"],
    ],
)
def test_query_that_takes_seconds_to_compile_is_refused_unread(patterns: list[str]) -> None:
    with pytest.raises(BadQuery, match="too long to compile"):
        parse_expression(several(patterns))


def test_raw_strings_and_matchers_of_series_are_checked_too() -> None:
    with pytest.raises(BadQuery, match="too long to compile"):
        parse_expression(r"x{pod=~`\pL{1,900}`}")
    with pytest.raises(BadQuery, match="too long to compile"):
        parse_selector(r'{pod=~"\\pL{1,900}"}')


@pytest.mark.parametrize(
    "pattern",
    [
        r"\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}:\\d{2,5}",
        r"(node|gpu)-[a-z0-9]{5,10}-[a-z0-9]{5}(\\.[a-z]{2,10}){1,4}",
        r"\\w+-\\w+-\\w{5,63}",
        "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "|".join(f"job-{number}-worker-{number % 8}" for number in range(14_000)),
        r"[]{1,9}]\\{1,900\\}",
        ".{1,63}",
    ],
)
def test_patterns_of_dashboards_are_accepted(pattern: str) -> None:
    assert len(parse_expression(several([pattern])).selectors) == 1
