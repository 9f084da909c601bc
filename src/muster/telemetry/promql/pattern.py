"""A regular expression of a caller, without a backtracking engine.

A caller's pattern must not cost the guard more than its length. So it is read as a set of globs that match at least
what the pattern matches: literals, `.*`, `.+` and `.` exactly, everything else as "any text". The syntax is that of RE2
(https://github.com/google/re2/wiki/Syntax), anchored at both ends as Prometheus anchors it.
"""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import Final

import msgspec

MAX_BRANCHES: Final = 10_000
MAX_CHARACTERS: Final = 32 * 1024
"""Of all branches together. A longer pattern counts as "can match everything"."""
_MAX_DEPTH: Final = 20
_SHORT: Final = 256
_SPECIAL: Final = re.compile(r"[\\.+*?()\[\]{}^$]")


class Wild(Enum):
    """What stands between literals: exactly one character, any text, some text, or a part that is not understood."""

    ONE = "."
    SOME = ".+"
    ANY = ".*"
    UNKNOWN = "?"


Branch = tuple[str | Wild, ...]


class Pattern(msgspec.Struct, frozen=True):
    """A pattern as alternatives of literals and wildcards.

    Attributes:
        branches: which together match at least what the pattern matches.
        literals: the only values that match, or None where they are not a list.
    """

    branches: tuple[Branch, ...]
    literals: tuple[str, ...] | None = None

    @staticmethod
    def of(text: str) -> Pattern:
        """Read a pattern. Never fails: a pattern that is not understood can match everything."""
        if len(text) > MAX_CHARACTERS:
            return _EVERYTHING
        return _read_short(text) if len(text) <= _SHORT else _read_long(text)

    def matches(self, value: str) -> bool | None:
        """Return whether the value matches, or None if only a full engine can say so."""
        if self.literals is not None:
            return value in self.literals
        answer: bool | None = False
        for branch in self.branches:
            if _glob(branch, value):
                if Wild.UNKNOWN not in branch and "\n" not in value:
                    return True
                answer = None
        return answer


def _glob(branch: Branch, value: str) -> bool:
    """Match with the last wildcard as the only point of return: at most len(branch) * len(value) steps."""
    tokens = [each for part in branch for each in (part if isinstance(part, str) else (part,))]
    at, token, back_token, back_at = 0, 0, -1, 0
    while at < len(value):
        current = tokens[token] if token < len(tokens) else None
        if isinstance(current, Wild) and current is not Wild.ONE:
            at += current is Wild.SOME
            token += 1
            back_token, back_at = token, at
        elif current is Wild.ONE or current == value[at]:
            token, at = token + 1, at + 1
        elif back_token >= 0:
            back_at += 1
            token, at = back_token, back_at
        else:
            return False
    return all(each in (Wild.ANY, Wild.UNKNOWN) for each in tokens[token:]) and at == len(value)


_EVERYTHING: Final = Pattern(((Wild.UNKNOWN,),))


@functools.lru_cache(maxsize=1024)
def _read_short(text: str) -> Pattern:
    return _read(text)


@functools.lru_cache(maxsize=16)
def _read_long(text: str) -> Pattern:
    return _read(text)


def _read(text: str) -> Pattern:
    if not _SPECIAL.search(text):
        return _listed(text.split("|"))
    try:
        reader = _Reader(text)
        branches = reader.alternation(0)
        if reader.at < len(text):
            return _EVERYTHING
        merged = tuple(_merged(each) for each in branches)
        return Pattern(merged, _literals(merged))
    except _NotUnderstoodError:
        return _EVERYTHING


def _listed(values: list[str]) -> Pattern:
    if len(values) > MAX_BRANCHES:
        return _EVERYTHING
    return Pattern(tuple((each,) if each else () for each in values), tuple(dict.fromkeys(values)))


def _literals(branches: tuple[Branch, ...]) -> tuple[str, ...] | None:
    found: dict[str, None] = {}
    for branch in branches:
        if len(branch) > 1 or (branch and not isinstance(branch[0], str)):
            return None
        found["".join(each for each in branch if isinstance(each, str))] = None
    return tuple(found)


class _NotUnderstoodError(Exception):
    """The pattern has syntax that changes the meaning of what follows, or expands to too much."""


class _Reader:
    """Reads one pattern by recursive descent; groups are at most _MAX_DEPTH deep."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def alternation(self, depth: int) -> list[Branch]:
        """Read branches up to the end or the closing bracket."""
        if depth > _MAX_DEPTH:
            raise _NotUnderstoodError
        found = self._concatenation(depth)
        size = sum(map(len, found))
        while self._peek() == "|":
            self.at += 1
            more = self._concatenation(depth)
            size += sum(map(len, more))
            found += more
            _check_size(len(found), size)
        return found

    def _concatenation(self, depth: int) -> list[Branch]:
        found: list[Branch] = [()]
        pending: list[str | Wild] = []
        while self._peek() not in ("", "|", ")"):
            items = self._quantified(self._atom(depth))
            if len(items) == 1:
                pending.extend(items[0])
                continue
            found = _product(_product(found, [tuple(pending)]), items)
            pending = []
        return _product(found, [tuple(pending)])

    def _atom(self, depth: int) -> list[Branch]:
        character = self._text[self.at]
        self.at += 1
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return self._character_class()
            case ".":
                return [(Wild.ONE,)]
            case "\\":
                return self._escape()
            case "^" | "$":
                at_edge = self.at == 1 if character == "^" else self.at == len(self._text)
                return [()] if at_edge else [(Wild.UNKNOWN,)]
            case "*" | "+" | "?":
                raise _NotUnderstoodError
            case _:
                return [(character,)]

    def _group(self, depth: int) -> list[Branch]:
        if self._text.startswith("?:", self.at):
            self.at += 2
        elif self._peek() == "?":
            raise _NotUnderstoodError
        found = self.alternation(depth + 1)
        if self._peek() != ")":
            raise _NotUnderstoodError
        self.at += 1
        return found

    def _character_class(self) -> list[Branch]:
        at = self.at + (self._peek() == "^")
        at += self._text.startswith("]", at)
        while at < len(self._text) and self._text[at] != "]":
            if self._text.startswith("[:", at):
                at = self._text.find(":]", at) + 1
                if at == 0:
                    raise _NotUnderstoodError
            at += 2 if self._text.startswith("\\", at) else 1
        if at >= len(self._text):
            raise _NotUnderstoodError
        self.at = at + 1
        return [(Wild.UNKNOWN,)]

    def _escape(self) -> list[Branch]:
        character = self._peek()
        self.at += 1
        if character in ("", "Q", "E") or not character.isascii():
            raise _NotUnderstoodError
        if not character.isalnum():
            return [(character,)]
        if character in ("p", "P", "x") and self._peek() == "{":
            end = self._text.find("}", self.at)
            if end < 0:
                raise _NotUnderstoodError
            self.at = end + 1
        elif character in ("p", "P"):
            self.at += 1
        elif character == "x":
            self.at += 2
        elif character.isdigit():
            raise _NotUnderstoodError
        return [(Wild.UNKNOWN,)]

    def _quantified(self, items: list[Branch]) -> list[Branch]:
        """Read the quantifiers after an atom."""
        first = True
        while self._peek() in ("*", "+", "?", "{") and self._peek():
            quantifier = self._peek()
            if quantifier == "{":
                end = self._text.find("}", self.at)
                if end < 0 or not self._text[self.at + 1 : end].replace(",", "").isdigit():
                    raise _NotUnderstoodError
                self.at = end + 1
            else:
                self.at += 1
            if not first:
                continue  # lazy: matches the same values
            first = False
            if items == [(Wild.ONE,)] and quantifier in ("*", "+"):
                items = [(Wild.ANY if quantifier == "*" else Wild.SOME,)]
            else:
                items = [(Wild.UNKNOWN,)]
        return items

    def _peek(self) -> str:
        return self._text[self.at] if self.at < len(self._text) else ""


def _product(left: list[Branch], right: list[Branch]) -> list[Branch]:
    if right == [()]:
        return left
    size = sum(map(len, left)) * len(right) + sum(map(len, right)) * len(left)
    _check_size(len(left) * len(right), size)
    return [(*first, *second) for first in left for second in right]


def _check_size(branches: int, size: int) -> None:
    if branches > MAX_BRANCHES or size > MAX_CHARACTERS:
        raise _NotUnderstoodError


def _merged(branch: Branch) -> Branch:
    """Join neighbouring characters, and wildcards that mean the same."""
    found: list[str | Wild] = []
    for each in branch:
        last = found[-1] if found else None
        if isinstance(each, str) and isinstance(last, str):
            found[-1] = last + each
        elif each is not last or each is Wild.ONE or each is Wild.SOME:
            found.append(each)
    return tuple(found)
