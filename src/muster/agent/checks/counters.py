"""How much counters rose between two samples, though they wrap, are reset, or stop at their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

K = TypeVar("K")

NUMBER_MAX: Final = 2**64 - 1
_END: Final = 16
"""A counter wraps only from the last to the first sixteenth of its range; anything else that falls was reset."""


def rise(old: int | None, new: int | None, bits: int = 64) -> int:
    """Return by how much a counter rose; nothing where either sample is missing.

    A counter that fell was reset (a driver was loaded anew, a card or GPU was reset) and what it shows now came since;
    from just before its end to just after zero it wrapped.

    Args:
        old: the earlier sample; what does not fit into `bits` is garbage, and as good as missing.
        new: the later one.
        bits: how wide the counter is.
    """
    size = 1 << bits
    if old is None or new is None or not (0 <= old < size and 0 <= new < size):
        return 0
    if new >= old:
        return new - old
    wrapped = old >= size - size // _END and new < size // _END
    return new - old + size if wrapped else new


def rises(old: Mapping[K, int], new: Mapping[K, int], bits: int = 64) -> dict[K, int]:
    """Return those that rose, and by how much; what is in one of them only is a baseline."""
    found = {key: rise(old.get(key), value, bits) for key, value in new.items()}
    return {key: value for key, value in found.items() if value}
