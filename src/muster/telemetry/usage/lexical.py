"""Names in a text that cannot be parsed: every word that could be a metric, so that nothing it reads is dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from muster.telemetry.usage.selection import EVERYTHING, Selection, matching, named
from muster.telemetry.usage.variables import (
    ANY,
    VARIABLE_TEXT,
    Filled,
    has_place,
    has_variable,
    pattern_of,
    variable_name,
)

_STRING: Final = re.compile(r""""((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|`([^`]*)`""", re.DOTALL)
_JSON_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
"""Escapes of JSON: without them `\\nup` would be one word."""
_WORD: Final = re.compile(r"[a-zA-Z_:][\w:]*")
_WORD_WITH_VARIABLES: Final = re.compile(rf"(?:{VARIABLE_TEXT}|[\w:])+")
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}|%\(\w+\)s|%s", re.DOTALL)
"""What a program replaces before Prometheus or Grafana reads the file: a template of Helm, or a format."""
_MARK: Final = "\x1a"
_MARKED_WORD: Final = re.compile(rf"[\w:]*{_MARK}[\w:{_MARK}]*")
_EXPRESSION_BEFORE: Final = re.compile(r"\(\s*$|\b(?:expr|query)[\"']?\s*[:=]\s*[|>]?-?\s*[\"']?$")
_VALUE_BEFORE: Final = re.compile(r"[=~]\s*(\\?[\"']\s?|\s)$|\[$")
"""What stands before a variable that is a value of a condition, or a range."""
_OPEN: Final = re.compile(r"(?P<before>[\w:.]*)\s*\{(?P<inside>[^{}]*)\}?")
_NOT_NAMES: Final = frozenset({"and", "atan2", "bool", "group_left", "group_right", "offset", "or", "unless"})
"""Words that may stand before the brace of another selector."""
_NEVER_NAMES: Final = _NOT_NAMES | {
    *("avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min", "quantile"),
    *("stddev", "stdvar", "sum", "topk"),
    *("by", "end", "ignoring", "inf", "nan", "on", "start", "without"),
}
"""Keywords, numbers and aggregations: a query with nothing else names no metric."""
_LABELS_OR_RANGE: Final = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)?|\[[^\]]*\]?", re.IGNORECASE
)
_OUTSIDE_WORD: Final = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:]*+(?!\s*\()")
_CONDITION_BEFORE: Final = re.compile(r"[=~]\s*(?:[\"'`][^\"'`{}()\s]*)?$")
"""What stands before a part of a condition's value, whose quotes may be missing."""
_NAMES_MAX: Final = 20_000
_CONDITION_MAX: Final = 200


def possible_selections(filled: Filled) -> set[Selection]:
    """Return a selection for each metric that a query could read, whatever its grammar is.

    A query names a metric by a word, or by a quoted name in braces. If it has neither before or in its braces, or asks
    for `__name__` in a way that is not understood, it could read every metric.
    """
    text = filled.text
    if not text.strip():
        return set()
    bare = _STRING.sub('""', text)
    if "__name__" in bare or any(map(_without_name, _OPEN.finditer(bare))) or not _has_name(bare):
        return {EVERYTHING}
    found: set[Selection] = set()
    for word in {*_words(bare), *_strings(text)}:
        found.add(matching(filled.literal_pattern(word)) if has_place(word) else named(word))
        if len(found) > _NAMES_MAX:
            return {EVERYTHING}
    return found


def _words(bare: str) -> Iterator[str]:
    """Yield words outside of strings, without variables in values of conditions, which cannot be names."""
    for found in _WORD.finditer(bare):
        if not (has_place(found[0]) and _in_condition(bare, found.start())):
            yield found[0]


def _strings(text: str) -> Iterator[str]:
    """Yield the contents of strings. One with a variable, and that is the value of a condition, cannot be one."""
    for found in _STRING.finditer(text):
        string = found[found.lastindex or 1]
        if string and not (has_place(string) and _in_condition(text, found.start())):
            yield string


def _in_condition(text: str, at: int) -> bool:
    return _CONDITION_BEFORE.search(text[max(at - _CONDITION_MAX, 0) : at]) is not None


def _has_name(bare: str) -> bool:
    """Returns whether a text, whose strings are empty, has a word or a quoted name that can be that of a metric."""
    plain = _LABELS_OR_RANGE.sub(" ", bare)
    if any('""' in _names_only(each["inside"]) for each in _OPEN.finditer(plain)):
        return True
    plain = _OPEN.sub(lambda found: f"{found['before']} ", plain)
    return any(word.lower() not in _NEVER_NAMES for word in _OUTSIDE_WORD.findall(plain))


def _without_name(found: re.Match[str]) -> bool:
    """Returns whether a selector names its metric neither before its braces nor in them."""
    before = found["before"]
    named = _WORD.fullmatch(before) is not None and before.lower() not in _NOT_NAMES
    return not named and '""' not in _names_only(found["inside"])


def _names_only(inside: str) -> str:
    """Return what is in braces without conditions: a quoted metric name stays."""
    return re.sub(r'(""|[\w:.]+)\s*[=!][=~]?\s*""', "", inside)


def words_of_text(text: str) -> set[Selection]:
    """Return a selection for each word of a text that cannot be read as what it is, such as a damaged file.

    A variable in a word stands for anything. One that is a word of its own can be any metric, unless it is a value of a
    condition, or a range.
    """
    if "__name__" in text:
        return {EVERYTHING}
    found: set[Selection] = set()
    for plain in (text, _ESCAPE.sub(" ", text)):
        for token in _WORD_WITH_VARIABLES.finditer(plain):
            word = token[0]
            if not has_variable(word):
                found.update(map(named, _WORD.findall(word)))
            elif not variable_name(word):
                found.add(matching(pattern_of(word)))
            elif _VALUE_BEFORE.search(plain[max(token.start() - 8, 0) : token.start()]) is None:
                return {EVERYTHING}
            if len(found) > _NAMES_MAX:
                return {EVERYTHING}
    return {EVERYTHING} if (templated := _templated_words(text)) is None else found | templated


def _templated_words(text: str) -> set[Selection] | None:
    """Return a selection for each word with a part that a template writes; None if it could write a whole query."""
    marked = _PLACEHOLDER.sub(_MARK, text.replace(_MARK, " "))
    found: set[Selection] = set()
    for word in _MARKED_WORD.finditer(marked):
        if word[0].strip(_MARK):
            found.add(matching(ANY.join(map(re.escape, word[0].split(_MARK)))))
        elif marked[word.end() : word.end() + 1] in ("[", "{") or _EXPRESSION_BEFORE.search(
            marked[max(word.start() - 40, 0) : word.start()]
        ):
            return None
    return found if len(found) <= _NAMES_MAX else None


def is_cut(text: str) -> bool:
    """Returns whether JSON text ends too early, so that its missing part could use anything."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    bare = _JSON_STRING.sub("", text)
    return '"' in bare or len(re.findall(r"[{\[]", bare)) > len(re.findall(r"[}\]]", bare))
