"""A matcher of one label as Prometheus reads it: anchored at both ends, an absent label is the empty value."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from muster.telemetry.promql.pattern import Pattern
from muster.telemetry.promql.text import quote

Op = Literal["=", "!=", "=~", "!~"]
NAME_LABEL: Final = "__name__"
_PLAIN_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def is_plain(label: str) -> bool:
    """Return whether a label name needs no quotes."""
    return _PLAIN_LABEL.fullmatch(label) is not None


class Matcher(msgspec.Struct, frozen=True, order=True):
    """One condition on a label: `name op "value"`."""

    name: str
    op: Op
    value: str

    def matches(self, value: str) -> bool:
        """Return whether a label with this value can match. Empty stands for a label that is absent.

        A pattern outside the subset that Pattern understands can match every value.
        """
        match self.op:
            case "=":
                return value == self.value
            case "!=":
                return value != self.value
            case "=~":
                return Pattern.of(self.value).matches(value) is not False
            case "!~":
                return Pattern.of(self.value).matches(value) is not True

    @property
    def literals(self) -> tuple[str, ...] | None:
        """The only values that match, or None where they are not a short list."""
        if self.op == "=":
            return (self.value,)
        return Pattern.of(self.value).literals if self.op == "=~" else None

    @property
    def matches_empty(self) -> bool:
        """Whether series without the label can match."""
        return self.matches("")

    def __str__(self) -> str:
        name = self.name if is_plain(self.name) else quote(self.name)
        return f"{name}{self.op}{quote(self.value)}"
