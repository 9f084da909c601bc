"""The number of series of a selector at one instant."""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_INTERVAL_S: Final = 30.0
"""Between the samples of a series, if the server does not count them."""


class Count(msgspec.Struct, frozen=True):
    """The series of a selector at one instant.

    Attributes:
        series: with a sample in the last five minutes.
        interval_s: between the samples of a series.
        exact: counted, not an upper bound.
        head_series: in the head when this was counted, 0 if unknown.
        counted_interval: whether the interval was counted.
    """

    series: int
    interval_s: float = DEFAULT_INTERVAL_S
    exact: bool = True
    head_series: int = 0
    counted_interval: bool = False
