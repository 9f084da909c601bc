"""Checks and normalises PromQL text before the native parser sees it.

The parser is recursive: deep expressions overflow its stack and end the process, and its time grows with the square of
the depth. So text is bounded first, by tokens that can nest. The scan is linear.
"""

from __future__ import annotations

import re
from typing import Final

from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.regexcost import MAX_US, compile_us, unquoted

MAX_CHARACTERS: Final = 256 * 1024
MAX_NESTING: Final = 400
"""Brackets and operators in one expression: the parser takes 0.1 s at most for as many."""

_TOKEN: Final = re.compile(
    r"""
    (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<raw>`[^`]*`)
    | (?P<comment>\#[^\n]*)
    | (?P<negative_at>@(?:\s|\#[^\n]*\n)*-)
    | (?P<nesting>[(\[{+\-*/%^]|[=!<>]=?|\b(?:and|or|unless|atan2)\b)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_MATCHER_OPERATORS: Final = frozenset({"=", "!=", "!"})


def normalise(text: str) -> str:
    """Return the text as the parser understands it: raw strings become quoted ones.

    Raises:
        BadQuery: the text is too long or nests too deep, its regular expressions would take too long to compile, or
            it has a negative @ time (before 1970).
    """
    if len(text) > MAX_CHARACTERS:
        raise BadQuery(f"the expression has {len(text)} characters; at most {MAX_CHARACTERS} are accepted")
    nesting = compile_time_us = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal nesting, compile_time_us
        token = found.group()
        match found.lastgroup:
            case "raw":
                compile_time_us += compile_us(token[1:-1])
                return quote(token[1:-1])
            case "quoted":
                compile_time_us += compile_us(unquoted(token))
            case "negative_at":
                raise BadQuery("a time before 1970 after @ is not supported")
            case "nesting" if token not in _MATCHER_OPERATORS:
                nesting += 1
        return token

    result = _TOKEN.sub(replaced, text)
    if nesting > MAX_NESTING:
        raise BadQuery(f"the expression has {nesting} brackets and operators; at most {MAX_NESTING} are accepted")
    if compile_time_us > MAX_US:
        raise BadQuery("the regular expressions take too long to compile: use fewer classes and counted repetitions")
    return result


def quote(value: str) -> str:
    """Return the value as a PromQL string in double quotes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
