"""Formats numbers of bytes, and shares."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """`0 B`, `1.5 KiB`, `120 GiB`: three digits at most, in units of 1024."""
    number, unit = float(count), 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    text = f"{number:.0f}" if number >= 99.5 or unit == 0 else f"{number:.1f}"
    return f"{text.removesuffix('.0')} {_UNITS[unit]}"


def share(part: int, whole: int) -> str:
    """`87%`; `-` if there is nothing to divide."""
    return f"{100 * part / whole:.0f}%" if whole else "-"
