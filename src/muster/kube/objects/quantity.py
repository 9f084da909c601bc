"""Kubernetes quantities such as `500m`, `1.5Gi` and `2e3`. They are parsed, rounded and written as by apimachinery.

Rules from k8s.io/apimachinery/pkg/api/resource/quantity.go: nothing finer than a nano (rounded away from zero), binary
quantities are capped at 2^63-1, integer readings round away from zero.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

QuantityLike = str | int | float | Fraction
"""Types that these functions accept: wire forms, and parsed numbers."""

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,9})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIX = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO = 10**9
_MAX = 2**63 - 1
_EXPONENT_MAX = 1000


class QuantityError(ValueError):
    """Not a quantity."""


def parse_quantity(quantity: QuantityLike) -> int | Fraction:
    """Return the exact value of a quantity; an int if it is whole. Raises QuantityError."""
    if isinstance(quantity, str):
        return _parse(quantity)[0]
    if isinstance(quantity, float):
        return _parse(repr(quantity))[0]
    return _whole(quantity)


def to_int(quantity: QuantityLike) -> int:
    """Return the quantity in units (bytes, GPUs), rounded away from zero. Raises QuantityError."""
    return _away(parse_quantity(quantity))


def milli(quantity: QuantityLike) -> int:
    """Return the quantity in thousandths (millicores), rounded away from zero. Raises QuantityError."""
    return _away(parse_quantity(quantity) * 1000)


def format_quantity(value: int | Fraction, *, binary: bool = False) -> str:
    """Write a number in canonical form: the largest suffix with a whole mantissa; Ki, Mi, ... if `binary`."""
    return _format(_to_nano(value), "binary" if binary else "decimal")


def canonical_quantity(quantity: QuantityLike, *, finest_exponent: int = -9) -> str:
    """Rewrite a quantity as the API server stores it: same family of suffixes. Raises QuantityError.

    Requests, limits and capacities are rounded to thousandths (SetDefaults_ResourceList): pass -3 for them.
    """
    if isinstance(quantity, Fraction):
        return format_quantity(quantity)
    text = quantity if isinstance(quantity, str) else repr(quantity)
    value, family = _parse(text)
    if _stands_as_written(text, finest_exponent):
        return text
    unit = 10**-finest_exponent
    return _format(_whole(Fraction(_away(value * unit), unit)), family)


def _stands_as_written(text: str, finest_exponent: int) -> bool:
    """Returns whether the API server stores the text unchanged.

    Its parser keeps some forms that are not canonical, such as `1.234k`.
    """
    match = _FORM.fullmatch(text)
    assert match is not None
    whole, fraction, suffix = match[2].lstrip("0"), match[3] or "", match[4] or ""
    if not whole:
        return False
    if suffix in _BINARY:
        room = 14 - len(whole) - _BINARY[suffix] * 3 // 10
        return not fraction and room >= 0 and int(whole) % 8 != 0
    scale = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    scale -= len(fraction)
    digits = whole + fraction
    return scale >= finest_exponent and scale % 3 == 0 and len(digits) <= 18 and not digits.endswith("000")


@functools.lru_cache(maxsize=8192)
def _parse(text: str) -> tuple[int | Fraction, str]:
    match = _FORM.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise QuantityError(f"{text!r} is not a quantity; write a number and a suffix, such as 500m, 2 or 1.5Gi")
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4] or ""
    digits = int(whole + fraction)
    exponent, family, base = -len(fraction), "decimal", 0
    if suffix in _BINARY:
        base, family = _BINARY[suffix], "binary"
    elif suffix in _DECIMAL:
        exponent += _DECIMAL[suffix]
    else:
        exponent += int(suffix[1:])
        family = "exponent"
    if abs(exponent) > _EXPONENT_MAX + len(fraction):
        raise QuantityError(f"{text!r} is out of range for a quantity")
    digits <<= base
    value = _to_nano(digits * 10**exponent if exponent >= 0 else Fraction(digits, 10**-exponent))
    if family == "binary":
        value = min(value, _MAX)
    return (-value if sign == "-" else value), family


def _whole(value: int | Fraction) -> int | Fraction:
    return value.numerator if value.denominator == 1 else value


def _to_nano(value: int | Fraction) -> int | Fraction:
    return _whole(Fraction(_away(value * _NANO), _NANO)) if value.denominator != 1 else value.numerator


def _away(value: int | Fraction) -> int:
    magnitude = -(-abs(value.numerator) // value.denominator)
    return magnitude if value.numerator >= 0 else -magnitude


def _format(value: int | Fraction, family: str) -> str:
    if not value:
        return "0"
    if family == "binary" and value.denominator == 1 and abs(value.numerator) >= 1024:
        mantissa, index = value.numerator, 0
        while mantissa % 1024 == 0 and index < len(_BINARY_SUFFIX) - 1:
            mantissa //= 1024
            index += 1
        return f"{mantissa}{_BINARY_SUFFIX[index]}"
    mantissa, exponent = int(value * _NANO), -9
    while mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    if family == "exponent" or exponent not in _DECIMAL_SUFFIX:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"
