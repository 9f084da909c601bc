"""Formats rates of networks."""

from __future__ import annotations

_UNITS = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")


def rate(bps: float) -> str:
    """`0 bit/s`, `1.5 Mbit/s`, `120 Gbit/s`: three digits at most, in units of 1000."""
    number, unit = float(bps), 0
    while abs(number) >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    text = f"{number:.0f}" if abs(number) >= 99.5 or unit == 0 else f"{number:.1f}"
    return f"{text.removesuffix('.0')} {_UNITS[unit]}"
