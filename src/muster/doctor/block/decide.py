"""Decides which blocks have ended."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.doctor.block.block import Block


class Plan(msgspec.Struct, frozen=True):
    """Blocks to remove, and when the next one ends (None: there is none)."""

    removals: tuple[Block, ...]
    wake_at: float | None


def decide(blocks: Iterable[Block], now: float) -> Plan:
    """Return the ended blocks, the oldest end first. `now` is in seconds since 1970."""
    ordered = sorted(blocks, key=lambda block: (block.expires_at, block.object_name))
    ended = tuple(block for block in ordered if block.expires_at <= now)
    later = next((block.expires_at for block in ordered if block.expires_at > now), None)
    return Plan(ended, later)
