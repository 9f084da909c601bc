"""Matrices for products that the host can verify in far fewer than n^3 steps.

There are two kinds, because each finds faults that the other misses:

- `known()`: small integers whose product is known in advance. Every partial sum is small and exact in any order and
  precision, and operands are not zero more often than by chance. Any single wrong bit shows.
- `random()`: all significant bits of the precision are used, as in real work. Rounding makes the product depend on the
  order of sums, so it is verified within a bound for rounding errors, by Freivalds' random projection (R. Freivalds,
  "Probabilistic machines can use less running time", IFIP 1977): C r = A (B r), here with r of +-1. Smaller errors show
  as a difference between runs or GPUs. cuBLAS excludes such differences for one GPU model and library ("Results
  Reproducibility" in its documentation).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]


class Precision(NamedTuple):
    """Significant bits of operands, of results and of sums (fp8's sums: DeepSeek-V3's report, section 3.3.2)."""

    operand_bits: int
    result_bits: int
    sum_bits: int


PRECISIONS: dict[str, Precision] = {
    "fp64": Precision(53, 53, 53),
    "fp32": Precision(24, 24, 24),
    "tf32": Precision(11, 24, 22),
    "bf16": Precision(8, 8, 22),
    "fp16": Precision(11, 11, 22),
    "fp8": Precision(4, 8, 13),
}


class WrongElements(NamedTuple):
    """Wrong elements: how many, and the first."""

    number: int
    row: int
    column: int
    expected: float
    found: float


def known(n: int, seed: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return operands (n x n, n even) and their product, with elements in [-8, 8].

    With A = [X, -X] and B = [Y; Y - E], interleaved, A B = X E. E has one +-1 in each column, so each column of the
    product is a column of X or its negative. Interleaved pairs cancel, so partial sums stay small.
    """
    random = np.random.default_rng(seed)
    half = n // 2
    x = random.integers(-8, 9, (n, half)).astype(np.float64)
    y = random.integers(-7, 8, (half, n)).astype(np.float64)
    rows, signs = random.integers(0, half, n), random.choice((-1.0, 1.0), n)
    a, b = np.empty((n, n)), np.empty((n, n))
    a[:, 0::2], a[:, 1::2] = x, -x
    b[0::2], b[1::2] = y, y
    b[2 * rows + 1, np.arange(n)] -= signs
    return a, b, x[:, rows] * signs


def difference(product: Matrix, expected: Matrix) -> WrongElements | None:
    """Return the elements that are not exactly as expected (a NaN never is)."""
    wrong = product != expected
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    row, column = divmod(int(np.argmax(wrong)), expected.shape[1])
    return WrongElements(count, row, column, float(expected[row, column]), float(product[row, column]))


def random(n: int, precision: str, seed: int) -> Matrix:
    """Return an n x n matrix of +-[0.5, 1), exactly representable in the precision."""
    generator = np.random.default_rng(seed)
    bits = PRECISIONS[precision].operand_bits
    half = 1 << (bits - 1)
    drawn = generator.integers(0, 2 * half, (n, n))
    matrix: Matrix = np.where(drawn < half, -half - drawn, drawn) * 2.0**-bits
    return matrix


class Projection:
    """Freivalds' check of products of two `random()` matrices: one r, and A (B r)."""

    def __init__(self, a: Matrix, b: Matrix, precision: str, seed: int):
        n = len(a)
        self.r = np.random.default_rng(seed).choice((-1.0, 1.0), n)
        self.expected = a @ (b @ self.r)
        spec = PRECISIONS[precision]
        # The error of an element is its own rounding and that of about n sums, which grow to sqrt(n). Over a row of n
        # elements with random signs, errors add up as sqrt(n). Sixteen times that cannot be rounding.
        element = 0.6 * n**0.5 * (2.0**-spec.result_bits + 4 * n**0.5 * 2.0**-spec.sum_bits)
        self.tolerance = 16 * n**0.5 * element

    def worst(self, product: Matrix) -> tuple[int, float]:
        """Return the row with the largest error, and the error in tolerances (more than 1: wrong; NaN: infinity)."""
        off = np.abs(product @ self.r - self.expected) / self.tolerance
        off = np.where(np.isfinite(off), off, np.inf)
        row = int(np.argmax(off))
        return row, float(off[row])
