"""A request that ended, as the log of the dearest queries sees it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.dearest.source import Source, printable

TEXT_MAX: Final = 1000
_SECRET: Final = re.compile(
    r"""(?ix) (\b \w* (?:passw|secret|token|api_?key|credential) \w* \s* (?:=~|!~|!=|=) \s*)"""
    r"""(?: "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | `[^`]*`? )"""
)


class Asked(msgspec.Struct, frozen=True):
    """A request that ended.

    Attributes:
        caller: who asked.
        kind: kind of the operation, such as `query_range`.
        text: the expression, or the selectors, as they were sent.
        range_s: seconds between start and end; 0 for an instant query.
        step_s: the step; 0 without one.
        cost: its price.
        source: which dashboard and panel sent it.
        outcome: `sent`, a reason of a refusal, or `gone` for a client that went away.
        duration_s: seconds until the end of the answer; 0 if it was refused.
        answer_bytes: bytes of the answer.
        series: priced series.
        samples: priced samples.
        exceeds: which limit it exceeds although it was sent, as in a dry run; "" for none.
    """

    caller: Caller
    kind: str
    text: str
    range_s: float
    step_s: float
    cost: float
    source: Source
    outcome: str
    duration_s: float = 0.0
    answer_bytes: int = 0
    series: int = 0
    samples: int = 0
    exceeds: str = ""


def shown_text(text: str) -> str:
    """Return the beginning of a query in one line, without values of labels whose names promise secrets."""
    return printable(_SECRET.sub(r'\1"<redacted>"', text[: 2 * TEXT_MAX].replace("\n", " ")), TEXT_MAX)
