"""Which nodes are held back, and which are opened to pods now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec


class NodeView(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        labels: as on the node.
        held: it has the taint of joining nodes.
        recorded: it has a record of ours: it was held back before.
        created_at: when its Node object was made, seconds since the epoch.
    """

    name: str
    ready: bool
    held: bool
    recorded: bool = False
    created_at: float = 0.0
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def turn(self) -> tuple[float, str]:
        """Its place in the line: the smallest goes first."""
        return self.created_at, self.name


class Plan(msgspec.Struct, frozen=True):
    """Nodes to open now, the longest waiting first; how many wait then, and how many are held but not Ready yet."""

    opens: tuple[str, ...]
    waiting: int
    coming: int


def to_hold(node: NodeView, selector: Mapping[str, str], since: float) -> bool:
    """Whether the taint is to be put on a node with these labels: it is new, and not Ready yet, so nothing is on it.

    Its kubelet mostly does that itself (registerWithTaints). A node that is Ready without the taint is left alone: it
    may have pods already. So is one made before `since`, when joins began to be watched over.
    """
    if node.held or node.ready or node.recorded or node.created_at < since:
        return False
    return all(node.labels.get(key) == value for key, value in selector.items())


def decide(nodes: Iterable[NodeView], allowance: int) -> Plan:
    """Open as many as are allowed of those that are held and Ready, in the order in which they came.

    Whoever put the taint there, and whatever the configuration is now: a node that nobody opens is lost.
    """
    held = sorted((node for node in nodes if node.held), key=lambda node: node.turn)
    ready = [node.name for node in held if node.ready]
    opens = tuple(ready[: max(0, allowance)])
    return Plan(opens, len(ready) - len(opens), len(held) - len(ready))
