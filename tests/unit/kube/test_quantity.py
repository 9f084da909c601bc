from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kube.objects.quantity import (
    QuantityError,
    canonical_quantity,
    format_quantity,
    milli,
    parse_quantity,
    to_int,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("-1", -1),
        ("+5", 5),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("00100", 100),
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e3", 1000),
        ("12e-3", Fraction(12, 1000)),
        ("1e+2", 100),
        ("100k", 100_000),
        ("5n", Fraction(5, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("0.5n", Fraction(1, 10**9)),  # rounded up to a nano
        ("-0.5n", Fraction(-1, 10**9)),
        ("1.1e-10", Fraction(1, 10**9)),
        ("0.1Ki", Fraction(1024, 10)),
        ("8Ei", 2**63 - 1),  # binary quantities are capped
        ("9223372036854775807", 2**63 - 1),
        ("18446744073709551616", 2**64),  # decimal ones are not
    ],
)
def test_parses_as_the_api_server_does(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1ki", "1K", "1i", "1.1.M", "1+1.0M", "aoeu", "--1", "1e", "m", "1_0", "1Mii", "٣"]
)
def test_refuses_an_invalid_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="not a quantity"):
        parse_quantity(text)


def test_a_monstrous_exponent_is_refused_quickly() -> None:
    with pytest.raises(QuantityError, match="out of range"):
        parse_quantity("1e999999999")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.5", "1500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1.2345", "1234500u"),
        ("0.5Ki", "512"),
        ("1Ki", "1Ki"),
        ("1000Ki", "1000Ki"),
        ("1e3", "1e3"),
        ("10e3", "10e3"),
        ("1e4", "10e3"),
        ("0Gi", "0"),
        ("-1.5Gi", "-1536Mi"),
        ("0.0001Ki", "102400u"),
        ("1025.5Ki", "1050112"),
        ("1000E", "1e21"),
        ("2000P", "2E"),
        # The server's parser takes these for canonical and keeps them as they are written.
        ("1.234k", "1.234k"),
        ("00012", "00012"),
        ("+3", "+3"),
        ("1.500", "1.500"),
    ],
)
def test_writes_the_canonical_form(text: str, canonical: str) -> None:
    assert canonical_quantity(text) == canonical


def test_wire_numbers_are_quantities_too() -> None:
    assert (parse_quantity(8), parse_quantity(0.1), canonical_quantity(0.5)) == (8, Fraction(1, 10), "500m")


numbers = st.decimals(min_value=-(10**6), max_value=10**6, places=4, allow_nan=False).map(lambda d: format(d, "f"))


@given(numbers, st.sampled_from(sorted(DECIMAL)))
def test_every_decimal_suffix_multiplies(number: str, suffix: str) -> None:
    shift = DECIMAL[suffix]
    exact = Fraction(number) * (Fraction(10**shift) if shift >= 0 else Fraction(1, 10**-shift))
    parsed = Fraction(parse_quantity(number + suffix))
    assert abs(parsed) >= abs(exact)
    assert abs(parsed - exact) < Fraction(1, 10**9)


@given(numbers, st.sampled_from(sorted(BINARY)))
def test_every_binary_suffix_multiplies_up_to_the_cap(number: str, suffix: str) -> None:
    exact = Fraction(number) * 2 ** BINARY[suffix]
    parsed = parse_quantity(number + suffix)
    if abs(exact) > 2**63 - 1:
        assert abs(parsed) == 2**63 - 1
    else:
        assert abs(parsed - exact) < Fraction(1, 10**9)


@given(numbers, st.sampled_from([*DECIMAL, *BINARY, "e3", "E-2", "e12"]))
def test_the_canonical_form_keeps_the_value_and_is_stable(number: str, suffix: str) -> None:
    canonical = canonical_quantity(number + suffix)
    assert parse_quantity(canonical) == parse_quantity(number + suffix)
    assert canonical_quantity(canonical) == canonical
    thousandths = canonical_quantity(number + suffix, finest_exponent=-3)
    assert parse_quantity(thousandths) == Fraction(milli(number + suffix), 1000)


@given(st.fractions(min_value=-(10**12), max_value=10**12, max_denominator=10**9))
def test_integers_round_away_from_zero(value: Fraction) -> None:
    for exact, rounded in ((value, to_int(value)), (value * 1000, milli(value))):
        assert abs(rounded) == math.ceil(abs(exact))
        assert rounded == 0 or (rounded > 0) is (exact.numerator > 0)


@given(st.integers(-(2**62), 2**62), st.booleans())
def test_format_round_trips(value: int, binary: bool) -> None:
    assert parse_quantity(format_quantity(value, binary=binary)) == value
