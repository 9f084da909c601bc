"""Sizes that a calibration covers, and in which respects another size lies outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from muster.telemetry.replay.model import ReplaySize

BEYOND: Final = 2.0
"""A size may exceed the measured ones by this factor. The time of a series grows with a power of their number that was
measured as 0.1 to 0.3, so doubling it makes an error of at most a tenth."""


class Coverage(msgspec.Struct, frozen=True):
    """Sizes of the logs that were measured.

    Attributes:
        series_most: series of the largest log.
        samples_most: samples of the log with the most.
        labels_each_most: labels of a series, in the log with the most of them.
        label_bytes_each_most: bytes of labels of a series, in the log with the longest ones.
        label_pairs_each_most: different label pairs of a series, in the log with the most of them.
    """

    series_most: int
    samples_most: int
    labels_each_most: float
    label_bytes_each_most: float
    label_pairs_each_most: float


def coverage_of(sizes: Sequence[ReplaySize]) -> Coverage:
    """Return what logs of these sizes cover; nothing without sizes."""
    return Coverage(
        series_most=max((size.series for size in sizes), default=0),
        samples_most=max((size.samples for size in sizes), default=0),
        labels_each_most=max((_each(size.labels, size) for size in sizes), default=0.0),
        label_bytes_each_most=max((_each(size.label_bytes, size) for size in sizes), default=0.0),
        label_pairs_each_most=max((_each(size.label_pairs, size) for size in sizes), default=0.0),
    )


def outside(size: ReplaySize, covers: Coverage) -> list[str]:
    """Return in which respects a size is outside, with the measured limits; empty if it is covered."""
    measured = (
        (size.series, covers.series_most, "series"),
        (size.samples, covers.samples_most, "samples"),
        (_each(size.labels, size), covers.labels_each_most, "labels of each series"),
        (_each(size.label_bytes, size), covers.label_bytes_each_most, "bytes of labels of each series"),
        (_each(size.label_pairs, size), covers.label_pairs_each_most, "label pairs for each series"),
    )
    return [f"{got:,.0f} {what} (measured up to {most:,.0f})" for got, most, what in measured if got > most * BEYOND]


def _each(number: int, size: ReplaySize) -> float:
    return number / size.series if size.series else 0.0
