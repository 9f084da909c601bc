"""Nodes on which no new pod may start: nodes that change teams or drain, and spares reserved for a gang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


class Handover:
    """The teams and remediation controllers write this after each of their plans.

    The scheduler of the same process reads it before its own plan.

    In a new leader it is empty until the first plans of those two controllers.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        """Names of nodes that are about to change teams. Running pods stay, and so do slots that gangs keep there."""
        self.kept: Mapping[str, str] = _NONE
        """Names of spare nodes, and the gang (`NAMESPACE/NAME`) for which each is reserved."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the set of nodes changes."""
        self.going: frozenset[str] = frozenset()
        """Gangs (`NAMESPACE/NAME`) whose pods are being drained from their nodes.

        They start again after the last pod has left."""
        self.gone: Callable[[frozenset[str]], None] = lambda gangs: None
        """Called with the gangs that are no longer in the set."""

    def set_nodes(self, nodes: frozenset[str]) -> None:
        """Replace the set of nodes that are about to change teams."""
        if nodes != self.nodes:
            self.nodes = nodes
            self.changed()

    def keep(self, kept: Mapping[str, str], going: frozenset[str] = frozenset()) -> None:
        """Replace the reserved spares, and the set of gangs that are being drained."""
        if kept != self.kept:
            self.kept = dict(kept)
            self.changed()
        before, self.going = self.going, going
        if before - going:
            self.gone(before - going)

    def closed(self, stays: Callable[[str], bool]) -> frozenset[str]:
        """Return the nodes on which no new pod may start.

        Args:
            stays: returns whether a gang is still on its old nodes. While it is, spares reserved for it are closed to
                all gangs. When it waits for nodes or has moved, they are open.
        """
        if not self.kept:
            return self.nodes
        staying = {gang for gang in set(self.kept.values()) if stays(gang)}
        return self.nodes | {node for node, gang in self.kept.items() if gang in staying}
