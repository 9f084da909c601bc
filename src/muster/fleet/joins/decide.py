"""Decides which new nodes to hold back, and which to open to pods now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec


class NodeView(msgspec.Struct, frozen=True):
    """A node in the form that joins use.

    Attributes:
        labels: the node's labels.
        held: it has the taint of joining nodes.
        recorded: it has our record: it was held back before.
        created_at: when its Node object was created, seconds since the epoch.
    """

    name: str
    ready: bool
    held: bool
    recorded: bool = False
    created_at: float = 0.0
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def turn(self) -> tuple[float, str]:
        """Its sort key in the queue: the smallest goes first."""
        return self.created_at, self.name


class Plan(msgspec.Struct, frozen=True):
    """Nodes to open now, the oldest first; how many others wait, and how many are held but not Ready yet."""

    opens: tuple[str, ...]
    waiting: int
    coming: int


def to_hold(node: NodeView, selector: Mapping[str, str], since: float) -> bool:
    """Return whether to put the taint on the node: it is new and not Ready yet, so it has no pods.

    Usually the kubelet sets the taint itself (registerWithTaints). A node that is Ready without the taint is left
    alone, because it may have pods. So is a node that was created before `since`, when joins were enabled.
    """
    if node.held or node.ready or node.recorded or node.created_at < since:
        return False
    return all(node.labels.get(key) == value for key, value in selector.items())


def decide(nodes: Iterable[NodeView], allowance: int) -> Plan:
    """Open held, Ready nodes in the order of their creation, as many as are allowed.

    This includes nodes tainted by other writers or under an earlier configuration: otherwise they would never open.
    """
    held = sorted((node for node in nodes if node.held), key=lambda node: node.turn)
    ready = [node.name for node in held if node.ready]
    opens = tuple(ready[: max(0, allowance)])
    return Plan(opens, len(ready) - len(opens), len(held) - len(ready))
