"""Durations as Prometheus writes them: `1h30m`, `250ms`.

Source: model.ParseDuration of its common library, for configurations, flags and the HTTP API.
"""

from __future__ import annotations

import re
from typing import Final

_MAX_CHARACTERS: Final = 64
_DURATION: Final = re.compile(
    r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII
)
_UNITS_S: Final = (365 * 86400.0, 7 * 86400.0, 86400.0, 3600.0, 60.0, 1.0, 0.001)


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration, whose units fall from years to milliseconds. `0` needs no unit.

    Raises:
        ValueError: the text is not a duration.
    """
    if duration == "0":
        return 0.0
    found = _DURATION.fullmatch(duration) if 0 < len(duration) <= _MAX_CHARACTERS else None
    if found is None:
        raise ValueError(f"{duration[:_MAX_CHARACTERS]!r} is not a duration: write it as 30s, 2h or 1h30m")
    return sum(int(each or 0) * unit_s for each, unit_s in zip(found.groups(), _UNITS_S, strict=True))
