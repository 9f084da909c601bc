"""Matches names against patterns as Prometheus does: anchored, RE2 syntax, in bounded time.

Only patterns that mean the same to Python and that cannot backtrack for long are evaluated. Any other one is unknown,
so that the caller can assume that it matches.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.promql.pattern import Pattern

_TOKEN: Final = re.compile(
    r"""(?P<flag>(?<![\s\S])\(\?i\))
    |(?P<class>\[\^?\]?(?:\\[^pPQ]|[^\]\\\[])*\])
    |(?P<escape>\\[dDwWsSbB]|\\[^a-zA-Z0-9])
    |(?P<open>\((?:\?:|\?P?<\w+>)?(?!\?))
    |(?P<repeated_group>\)(?:[*+]|\{\d+,?\d*\}))
    |(?P<close>\))
    |(?P<endless>[*+]|\{\d+,\d*\})
    |(?P<times>\{\d{1,3}\})
    |(?P<or>\|)
    |(?P<other>[^\\\[\](){}*+|])""",
    re.VERBOSE | re.DOTALL,
)
_ENDLESS_MAX: Final = 4
"""Most repetitions in one alternative. Time to match grows with the name's length to this power."""
_SET_OPERATORS: Final = re.compile(r"--|&&|~~|\|\|")
_CHARACTERS_MAX: Final = 20_000

Test = Callable[[str], bool]


def known(matcher: Matcher) -> bool:
    """Returns whether a condition can be evaluated exactly."""
    return matcher.op in ("=", "!=") or _test(matcher.value) is not None


def matches(matcher: Matcher, value: str) -> bool:
    """Returns whether a value meets a condition; True if that is unknown."""
    if matcher.op == "=":
        return value == matcher.value
    if matcher.op == "!=":
        return value != matcher.value
    test = _test(matcher.value)
    return test is None or test(value) == (matcher.op == "=~")


@functools.lru_cache(maxsize=4096)
def _test(pattern: str) -> Test | None:
    literals = Pattern.of(pattern).literals
    if literals is not None:
        return frozenset(literals).__contains__
    if not _same_in_python(pattern):
        return None
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, RecursionError, OverflowError):
        return None
    return lambda value: compiled.fullmatch(value) is not None


def _same_in_python(pattern: str) -> bool:
    """Returns whether a pattern is of the subset that RE2 and Python share, and cannot backtrack for long."""
    if len(pattern) > _CHARACTERS_MAX:
        return False
    end = endless = depth = 0
    for token in _TOKEN.finditer(pattern):
        if token.start() != end:
            return False
        end, kind = token.end(), token.lastgroup
        if kind == "repeated_group" or (kind == "class" and _SET_OPERATORS.search(token[0])):
            return False
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        endless += kind == "endless"
        if endless > _ENDLESS_MAX:
            return False
        if kind == "or" and depth == 0:
            endless = 0
    return end == len(pattern)
