"""Estimates how long the native parser compiles the regular expressions of a query.

It compiles each one as it reads it: a Unicode class takes 1 ms, a counted repetition as many copies as its upper end.
So a query of one kilobyte could stop the guard for seconds. The scan is linear, and may estimate too much.
"""

from __future__ import annotations

import re
from typing import Final

MAX_US: Final = 300_000
"""A list of as many characters as an expression may have stays below it."""

_UNICODE_CLASS_US: Final = 1200
_SMALL_CLASS_US: Final = 150
_RANGE_US: Final = 2
_ANY_US: Final = 10
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_CLASS: Final = re.compile(r"\\([pPwWdDsSbB])")
_ITEM: Final = re.compile(
    r"""
    (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]?)
    | (?P<class>\\[pP](?:\{[^}]*\}|.)|\\[wWdDsSbB])
    | (?P<repetition>\{\d*,?\d*\})
    | (?P<group>\))
    | (?P<any>\.)
    | (?P<one>\\?.)
    """,
    re.VERBOSE | re.DOTALL,
)


def compile_us(pattern: str) -> int:
    """Return about how many microseconds it takes to compile a pattern."""
    done, last, groups, after_group = 0, 0, 1, False
    for found in _ITEM.finditer(pattern):
        token = found.group()
        if found.lastgroup == "repetition":
            times = max((int(each) for each in re.findall(r"\d+", token)), default=1) or 1
            if after_group:
                groups *= times  # also what is outside of the group: too much, but never too little
            else:
                last *= times
            continue
        done += last
        after_group = found.lastgroup == "group"
        last = _item_us(found.lastgroup, token)
    return (done + last) * groups


def _item_us(kind: str | None, token: str) -> int:
    match kind:
        case "set":
            return len(token) * _RANGE_US + sum(_class_us(each) for each in _CLASS.findall(token))
        case "class":
            return _class_us(token[1])
        case "any":
            return _ANY_US
    return 1


def _class_us(letter: str) -> int:
    return _UNICODE_CLASS_US if letter in "pPwWbB" else _SMALL_CLASS_US


def unquoted(token: str) -> str:
    """Return the content of a string in double or single quotes."""
    return _ESCAPE.sub(_unescaped, token[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    *codes, octal, plain = found.groups()
    if plain is not None:
        return "" if plain in "abfnrtv" else str(plain)  # control characters cost nothing
    code = int(octal, 8) if octal is not None else int(next(each for each in codes if each is not None), 16)
    return chr(code) if code < 0x110000 else ""
