"""Spreads work of the fleet over a period: each node gets a fixed moment, computed from its name."""

from __future__ import annotations

import zlib


def share(*names: str) -> float:
    """Return a number from 0 up to 1 that is always the same for these names."""
    return zlib.crc32("\0".join(names).encode()) / 2**32
