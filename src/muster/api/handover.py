"""Nodes on which nothing new starts for now: those that are to change hands, and spares that are kept for a gang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


class Handover:
    """Allocation and remediation write it after each plan; the scheduler of the same process reads it before its own.

    It is empty in a new leader: until the first plan of those two, the scheduler works as if no node were about to
    move.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        """By name, those that are to change hands. What runs there stays, and so do slots that gangs keep there."""
        self.kept: Mapping[str, str] = _NONE
        """Spare nodes by name, and the gang (`NAMESPACE/NAME`) each is kept for until it comes."""
        self.changed: Callable[[], None] = lambda: None
        """Called when they are others than before."""
        self.going: frozenset[str] = frozenset()
        """Gangs (`NAMESPACE/NAME`) whose pods are being drained from their nodes.

        They start again after the last pod has left."""
        self.gone: Callable[[frozenset[str]], None] = lambda gangs: None
        """Called with those that are no longer among them."""

    def set_nodes(self, nodes: frozenset[str]) -> None:
        """Say which ones are to change hands now."""
        if nodes != self.nodes:
            self.nodes = nodes
            self.changed()

    def keep(self, kept: Mapping[str, str], going: frozenset[str] = frozenset()) -> None:
        """Say which spares are kept for whom now, and which gangs are leaving their nodes."""
        if kept != self.kept:
            self.kept = dict(kept)
            self.changed()
        before, self.going = self.going, going
        if before - going:
            self.gone(before - going)

    def closed(self, stays: Callable[[str], bool]) -> frozenset[str]:
        """Return the nodes on which nothing may start now.

        Args:
            stays: whether a gang is still where it was: nodes that are kept for it are closed to all. Once it waits for
                nodes they are open, and so they are once it has moved, wherever it went.
        """
        if not self.kept:
            return self.nodes
        staying = {gang for gang in set(self.kept.values()) if stays(gang)}
        return self.nodes | {node for node, gang in self.kept.items() if gang in staying}
