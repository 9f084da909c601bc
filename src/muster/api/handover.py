"""Nodes that are to change hands: allocation says which, the scheduler starts nothing new there meanwhile."""

from __future__ import annotations

from collections.abc import Callable


class Handover:
    """Told by allocation after each plan, read by the scheduler of the same process before each of its own.

    A new leader begins with none: until the first plan of its allocation it schedules as if nothing were to move.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        """By name. What runs there stays, and so do slots that gangs keep there."""
        self.changed: Callable[[], None] = lambda: None
        """Called when they are others than before."""

    def tell(self, nodes: frozenset[str]) -> None:
        """Say which ones are to change hands now."""
        if nodes != self.nodes:
            self.nodes = nodes
            self.changed()
