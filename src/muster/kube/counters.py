"""Computes how much counters rose between two samples, even if they wrap, are reset, or stop at their maximum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

K = TypeVar("K")

NUMBER_MAX: Final = 2**64 - 1
_END: Final = 16
"""A counter wraps only from the last to the first sixteenth of its range. Any other decrease is a reset."""


def rise(old: int | None, new: int | None, bits: int = 64) -> int:
    """Return by how much a counter rose; 0 if either sample is missing.

    A counter that fell was reset, because a driver was reloaded or a device was reset; its new value came since then.
    If it fell from just below its maximum to just above zero, it wrapped.

    Args:
        old: the earlier sample. A value that does not fit into `bits` counts as missing.
        new: the later sample.
        bits: the width of the counter.
    """
    size = 1 << bits
    if old is None or new is None or not (0 <= old < size and 0 <= new < size):
        return 0
    if new >= old:
        return new - old
    wrapped = old >= size - size // _END and new < size // _END
    return new - old + size if wrapped else new


def rises(old: Mapping[K, int], new: Mapping[K, int]) -> dict[K, int]:
    """Return the counters that rose, and by how much. A counter in only one sample is a baseline."""
    found = {key: rise(old.get(key), value) for key, value in new.items()}
    return {key: value for key, value in found.items() if value}
