"""Variables of Grafana in PromQL: replaced, so that a query with them can be parsed.

Forms of a variable: `$name`, `${name}`, `${name:format}`, `${name.field}`, `[[name]]`, `[[name:format]]` ("Variable
syntax" in Grafana's documentation).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

Values = tuple[str, ...] | None
"""Known values of a variable; None: it can have any value."""

ANY: Final = ".*"
_DURATION: Final = "5m"
BUILT_IN: Final[Mapping[str, Values]] = {
    "__interval": (_DURATION,),
    "__rate_interval": (_DURATION,),
    "__range": (_DURATION,),
    "__interval_ms": ("300000",),
    "__range_ms": ("300000",),
    "__range_s": ("300",),
    "__from": ("1700000000000",),
    "__to": ("1700000000000",),
}
"""Variables that Grafana sets itself, and that are numbers or durations."""
VARIABLE_TEXT: Final = r"\$\{\w+(?:\.[^:}]+)?(?::[^}]+)?\}|\[\[\w+?(?::[^\]]+)?\]\]|\$\w+"  # ${a:b}, [[a]], $a
_VARIABLE: Final = re.compile(VARIABLE_TEXT)
_TOKEN: Final = re.compile(
    rf"""(?P<comment>\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<word>(?:{VARIABLE_TEXT}|[\w:.])+)
    |(?P<range>\[(?:{VARIABLE_TEXT}|[^\[\]])*\])
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_PLACE: Final = re.compile(r"ZqVar(\d+)qZ")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+|ms|[smhdwy])?")
_NUMBER_FIRST: Final = frozenset(
    {"bottomk", "histogram_quantile", "limit_ratio", "limitk", "quantile", "quantile_over_time", "topk"}
)
"""Functions and aggregations whose first argument is a number."""
_NAME_PART: Final = re.compile(r"[\w:.-]+")
_NAME_START: Final = re.compile(r"[a-zA-Z_:]")
_VALUES_MAX: Final = 500
_ESCAPED_DOT: Final = re.escape(".")


@dataclass
class Filled:
    """A query whose variables are replaced.

    Attributes:
        text: the query. A place stands where a variable is part of a name or of a string.
        patterns: of each place, the pattern of what its variable can be.
        expressions: values of variables that are whole expressions; these are queries too.
    """

    text: str = ""
    patterns: list[str] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)

    def place(self, pattern: str) -> str:
        """Return the name of a new place."""
        self.patterns.append(pattern)
        return f"ZqVar{len(self.patterns) - 1}qZ"

    def literal_pattern(self, text: str) -> str:
        """Return the pattern of a name that contains places."""
        return self._joined(text, re.escape)

    def regex_pattern(self, text: str) -> str:
        """Return the pattern of a regular expression that contains places. A place is a group: `${x}+` is `(?:.*)+`."""
        return self._joined(text, lambda part: part, "(?:{})")

    def _joined(self, text: str, between: Callable[[str], str], place: str = "{}") -> str:
        parts, end = [], 0
        for found in _PLACE.finditer(text):
            parts += [between(text[end : found.start()]), place.format(self.patterns[int(found[1])])]
            end = found.end()
        return "".join([*parts, between(text[end:])])


def has_place(text: str) -> bool:
    """Returns whether a place of a variable is in a text."""
    return _PLACE.search(text) is not None


def in_class(pattern: str) -> bool:
    """Returns whether a place is, or could be, in a character class of a regular expression: `[$letters]`."""
    return re.search(rf"\[[^\]]*{_PLACE.pattern}", pattern) is not None


def has_variable(text: str) -> bool:
    """Returns whether a text contains a variable."""
    return _VARIABLE.search(text) is not None


def variable_name(text: str) -> str:
    """Return the name in one variable: `job` of `${job:regex}`. "" if the text is not just a variable."""
    if _VARIABLE.fullmatch(text) is None:
        return ""
    found = re.search(r"\w+", text)
    return found[0] if found else ""


def pattern_of(word: str) -> str:
    """Return the pattern of a word in which variables stand for anything."""
    return ANY.join(re.escape(part) for part in _VARIABLE.split(word))


def fill(text: str, variables: Mapping[str, Values]) -> Filled:
    """Replace the variables of a query.

    A variable that stands for a number or a duration becomes one. Another one becomes a place.
    """
    filled, parts = Filled(), []
    before, calls, depth = "", _Calls(), 0
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token[0]
        if kind == "comment":
            continue
        if kind == "string":
            found = _VARIABLE.sub(lambda each: filled.place(_pattern(_values(each[0], variables))), found)
        elif kind == "range" and has_variable(found):
            found = f"[{_DURATION}:1m]" if ":" in _VARIABLE.sub("", found) else f"[{_DURATION}]"
        elif kind == "word" and has_variable(found):
            after = text[token.end() :].lstrip()
            if calls.wants_number and variable_name(found) and not after.startswith(")"):  # not topk($arguments)
                found = "1"
            else:
                found = _word(found, before, after, depth > 0, filled, variables)
        elif kind == "other":
            depth += {"{": 1, "}": -1}.get(found, 0)
        parts.append(found)
        if kind != "space":
            calls.add(found, before)
            before = found
    filled.text = "".join(parts)
    return filled


class _Calls:
    """Follows the text to the first argument of a function that wants a number.

    Attributes:
        wants_number: whether the next token is this argument.
    """

    def __init__(self) -> None:
        self.wants_number = False
        self._aggregation = ""

    def add(self, token: str, before: str) -> None:
        """Add a token, with the one before it. In `topk by (job) (3, a)`, the arguments follow the labels."""
        self.wants_number = False
        if token != "(":
            self._aggregation = token if token.lower() in _NUMBER_FIRST else self._aggregation
        elif before.lower() not in ("by", "without"):
            called = self._aggregation if before == ")" else before
            self.wants_number = called.lower() in _NUMBER_FIRST
            self._aggregation = ""


def _word(word: str, before: str, after: str, in_braces: bool, filled: Filled, variables: Mapping[str, Values]) -> str:
    """Replace the variables in a word outside of strings: a name, a number, or a part of one."""
    name = variable_name(word)
    if before == "offset":
        return _DURATION
    if before == "@":
        return "0"
    if in_braces and before in ("=", "~"):  # {job=~$job}: the variable's format writes the quotes
        return f'"{filled.place(ANY)}"'
    if in_braces and before in ("{", ",") and after[:1] in (",", "}"):  # {$filters}: whole conditions
        return f'{filled.place(ANY)}!=""'
    if name and re.match(r"\(|by\b|without\b", after):  # an aggregation
        return "sum"
    values = [_values(each, variables) for each in _VARIABLE.findall(word)]
    if all(known and all(map(_NUMBER.fullmatch, known)) for known in values):
        number = _VARIABLE.sub(lambda each: (_values(each[0], variables) or ("",))[0], word)
        if _NAME_START.match(number) is None:  # http_${code}_total is a name
            return number
    if name and values[0] and not all(map(_NAME_PART.fullmatch, values[0])):
        filled.expressions += values[0]
        return "vector(1)"
    return _VARIABLE.sub(lambda each: filled.place(_pattern(_values(each[0], variables))), word)


def _values(variable: str, variables: Mapping[str, Values]) -> Values:
    name = variable_name(variable)
    return BUILT_IN[name] if name in BUILT_IN else variables.get(name)


def _pattern(values: Values) -> str:
    """Return the pattern of a variable: its known values, which multiple choices join with `|`.

    Numbers and durations can be anything, since Grafana computes some, and users type others. A dot stays a wildcard,
    since Grafana does not escape a single value in a pattern.
    """
    if not values or len(values) > _VALUES_MAX or not all(map(_NAME_PART.fullmatch, values)):
        return ANY
    if all(map(_NUMBER.fullmatch, values)):
        return ANY
    return f"(?:{'|'.join(re.escape(each).replace(_ESCAPED_DOT, '.') for each in values)})"
