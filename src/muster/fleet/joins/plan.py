"""The plan of joins: the nodes to open now."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """Nodes to open now, the oldest first; how many others wait, and how many are held but not Ready yet."""

    opens: tuple[str, ...]
    waiting: int
    coming: int
