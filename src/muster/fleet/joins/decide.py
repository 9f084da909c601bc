"""Decides which new nodes to hold back, and which to open to pods now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.fleet.joins.plan import Plan
from muster.fleet.joins.snapshot import JoiningNode


def to_hold(node: JoiningNode, selector: Mapping[str, str], since: float) -> bool:
    """Return whether to put the taint on the node: it is new and not Ready yet, so it has no pods.

    Usually the kubelet sets the taint itself (registerWithTaints). A node that is Ready without the taint is left
    alone, because it may have pods. So is a node that was created before `since`, when joins were enabled.
    """
    if node.held or node.ready or node.recorded or node.created_at < since:
        return False
    return all(node.labels.get(key) == value for key, value in selector.items())


def decide(nodes: Iterable[JoiningNode], allowance: int) -> Plan:
    """Open held, Ready nodes in the order of their creation, as many as are allowed.

    This includes nodes tainted by other writers or under an earlier configuration: otherwise they would never open.
    """
    held = sorted((node for node in nodes if node.held), key=lambda node: node.turn)
    ready = [node.name for node in held if node.ready]
    opens = tuple(ready[: max(0, allowance)])
    return Plan(opens, len(ready) - len(opens), len(held) - len(ready))
