"""The price of an operation."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SERIES_COST: Final = 100.0
"""What it costs to find and open a series, in samples. Measured: see docs/guard.md."""

BYTES_PER_COST: Final = 5.0
"""Memory that counts like one sample. So the dearest request by samples and that by memory cost about as much."""
FIXED_BYTES: Final = 1 << 20
"""Memory of any request."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation makes the server do: estimates, and upper bounds where there is no estimate.

    Attributes:
        series: that its selectors match over their windows, added up.
        samples: that the server reads, as `totalQueryableSamples` of its statistics counts.
        steps: points per series of a range query or of the longest subquery; 1 for others.
        range_s: seconds between the oldest and the newest sample that it may read.
        items: values, names or series that a metadata request returns, else 0.
        answer_bytes: of the answer, not compressed.
        memory_bytes: that the server allocates at most at once.
        known: `exact` (counted), `bounded` (no more than this) or `guess`.
    """

    series: int = 0
    samples: int = 0
    steps: int = 1
    range_s: float = 0.0
    items: int = 0
    answer_bytes: int = 0
    memory_bytes: int = 0
    known: Literal["exact", "bounded", "guess"] = "exact"

    @property
    def cost(self) -> float:
        """One number for budgets: the work, or the memory if that is more. Never below 1."""
        return cost_of(self.samples, self.series, self.memory_bytes)


def cost_of(samples: float, series: float, memory_bytes: float) -> float:
    """Return the cost: samples read and series opened as samples, or memory as samples. Never below 1."""
    return max(1.0, samples + series * SERIES_COST, (memory_bytes - FIXED_BYTES) / BYTES_PER_COST)
