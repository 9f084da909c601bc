"""Converts history entries of old versions, which had only a text, into typed fields.

An entry without `event` comes from such a version. After a rollback it can be newer than typed entries. Entries of this
version always have an `event`, so their text is never parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

_PATTERNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (event, re.compile(pattern, re.DOTALL))
    for event, pattern in (
        (
            "Released",
            r"released: level (?P<test_level>\d+) passed at"
            r" (?P<tested_at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00)",
        ),
        ("Released", r"released: asked for by (?P<by>.*?): .*"),
        ("Released", r"released(?:[ :].*)?"),
        ("Opened", r"opened(?:[ :].*)?"),
        ("Joining", r"joining(?:[ :].*)?"),
        ("Emptied", r"empty(?:[ :].*)?"),
        ("Reset", r"reset(?:[ :].*)?"),
        ("RebootRequested", r"boot(?: (?P<boot_id>.*)|:.*)?"),
        ("Booted", r"booted(?:[ :].*)?"),
        ("SharedFault", r"shared (?P<fault_key>.+?): .*"),
        ("Requested", r"asked for by (?P<by>.*?): .*"),
        ("SpareReserved", r"spare(?:[ :].*)?"),
    )
)


def typed(reason: str) -> Mapping[str, Any]:
    """Return the typed fields of an entry that has only this text."""
    for event, pattern in _PATTERNS:
        found = pattern.fullmatch(reason)
        if found is not None:
            fields: dict[str, Any] = {"event": event, **found.groupdict()}
            if "test_level" in fields:
                fields |= {
                    "test_level": int(fields["test_level"]),
                    "tested_at": datetime.fromisoformat(fields["tested_at"]),
                }
            return {name: value for name, value in fields.items() if value is not None}
    return {"event": "Entered"}
