"""Times, durations and numbers of the HTTP API, as strict as one canonical form allows.

Source: `parseTime` and `parseDuration` in web/api/v1/api.go of Prometheus. Forms that Go and Python read in different
ways (hexadecimal, underscores, NaN, infinity) are refused.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from muster.telemetry.guard.query.errors import BadRequest
from muster.telemetry.prometheus.durations import seconds_of

_MAX_CHARACTERS: Final = 64
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
EARLIEST_S: Final = -9223372036854775.0
LATEST_S: Final = 9223372036854775.0
_NAMED: Final = {
    "-292273086-05-16T16:47:06Z": EARLIEST_S,
    "292277025-08-18T07:12:54.999999999Z": LATEST_S,
}
"""How clients write the first and the last possible time."""


def parse_time(text: str, name: str) -> float:
    """Return Unix seconds. Raises BadRequest: neither a number nor a time of RFC 3339."""
    if len(text) <= _MAX_CHARACTERS:
        if text in _NAMED:
            return _NAMED[text]
        if _NUMBER.fullmatch(text):
            seconds = float(text)
            if EARLIEST_S <= seconds <= LATEST_S:
                return seconds
        elif found := _RFC3339.fullmatch(text):
            return _rfc3339(found, text, name)
    raise BadRequest(400, f"{name}={text[:_MAX_CHARACTERS]!r} is not a time: use Unix seconds or RFC 3339")


def _rfc3339(found: re.Match[str], text: str, name: str) -> float:
    day, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat(day.upper() + ("+00:00" if zone in "Zz" else zone))
    except ValueError as error:
        raise BadRequest(400, f"{name}={text!r} is not a time: {error}") from None
    return (whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() + float(fraction or 0)


def parse_duration(text: str, name: str) -> float:
    """Return seconds. Raises BadRequest: neither a number of seconds nor a duration such as 1h30m."""
    with suppress(ValueError):
        if len(text) > _MAX_CHARACTERS or not _NUMBER.fullmatch(text):
            return seconds_of(text)
        seconds = float(text)
        if abs(seconds) <= LATEST_S:
            return seconds
    raise BadRequest(400, f"{name}={text[:_MAX_CHARACTERS]!r} is not a duration: use seconds, or 5m or 1h30m")


def parse_count(text: str, name: str) -> int:
    """Return a number >= 0. Raises BadRequest."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise BadRequest(400, f"{name}={text[:_MAX_CHARACTERS]!r} is not a number >= 0")


def format_time(seconds: float) -> str:
    """Return the time as the API accepts it, in milliseconds at most."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
