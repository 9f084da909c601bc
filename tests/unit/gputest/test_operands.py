"""Products that are known beforehand, and bounds that rounding keeps and errors do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.gputest.operands import PRECISIONS, Projection, difference, known, random

N = 32
BITS = {"fp64": 53, "fp32": 24, "tf32": 11, "bf16": 8, "fp16": 11, "fp8": 4}


def rounded(matrix: np.ndarray, bits: int) -> np.ndarray:
    mantissa, exponent = np.frexp(matrix)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)


@given(seed=st.integers(0, 1 << 30))
def test_the_known_product_is_that_of_its_operands(seed: int) -> None:
    a, b, product = known(N, seed)
    assert difference(a @ b, product) is None


@given(seed=st.integers(0, 1 << 30), halves=st.integers(1, N // 2))
def test_no_partial_sum_of_the_known_product_needs_many_bits(seed: int, halves: int) -> None:
    """So that it is exact in the sums of fp8, too, where about 14 bits are kept."""
    a, b, _ = known(N, seed)
    assert np.abs(a[:, : 2 * halves] @ b[: 2 * halves]).max() <= 8
    assert np.abs(a).max() <= 8
    assert np.abs(b).max() <= 8


@pytest.mark.parametrize("precision", PRECISIONS)
def test_operands_are_exact_in_their_precision(precision: str) -> None:
    bits = BITS[precision]
    for matrix in (*known(N, 1), random(N, precision, 2)):
        assert (rounded(matrix, bits) == matrix).all()


@given(row=st.integers(0, N - 1), column=st.integers(0, N - 1), bit=st.integers(0, 63))
def test_one_flipped_bit_in_the_known_product_never_goes_unseen(row: int, column: int, bit: int) -> None:
    _, _, product = known(N, 3)
    spoiled = product + 0.0
    spoiled.view(np.uint64)[row, column] ^= np.uint64(1) << np.uint64(bit)
    wrong = difference(spoiled, product)
    if product[row, column] == 0 and bit == 63:
        return  # minus zero is zero
    assert wrong is not None
    assert (wrong.number, wrong.row, wrong.column) == (1, row, column)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_never_taken_for_an_error(precision: str, seed: int) -> None:
    """Sums that lose bits after each product, and a result that is rounded: the worst that hardware does."""
    a, b = random(N, precision, 2 * seed), random(N, precision, 2 * seed + 1)
    spec = PRECISIONS[precision]
    total = np.zeros((N, N))
    for k in range(N):
        total = rounded(total + np.outer(a[:, k], b[k]), spec.sum_bits)
    _, times = Projection(a, b, precision, seed).worst(rounded(total, spec.result_bits))
    assert times < 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_element_that_is_far_off_is_always_an_error(precision: str) -> None:
    a, b = random(N, precision, 5), random(N, precision, 6)
    product = a @ b
    product[7, 9] += 20 * np.abs(product).max()
    row, times = Projection(a, b, precision, 7).worst(product)
    assert row == 7
    assert times > 1
