"""Determines the state of each node of a pool (see `states`), and when the node entered that state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec, ScalingNode
from muster.fleet.scaling.states import NodeState, Tracked

SETTLE_S = 10.0
"""How long a node stays in Settling after it has become usable for pods.

The scheduler plans every five seconds, so by then it has taken the node into account.
"""
DELETE_AGAIN_S = 300.0
"""If an instance still exists this long after its deletion was requested, the deletion is requested again."""
_NEWCOMERS = frozenset({NodeState.LAUNCHING, NodeState.JOINING, NodeState.OVERDUE})
_UNSETTLED = _NEWCOMERS | {NodeState.HELD, NodeState.UNREADY}


def tracked_key(pool: str, instance: str) -> str:
    """Return the key of a node among all tracked nodes."""
    return f"{pool}/{instance}"


def classify(
    spec: PoolSpec, group: Group, nodes: Iterable[ScalingNode], before: Mapping[str, Tracked], now: float
) -> dict[str, Tracked]:
    """Return the state of each instance of the pool, by instance ID."""
    by_instance = {node.instance: node for node in nodes}
    states = {}
    for instance in group.instances:
        known = before.get(tracked_key(spec.name, instance.id))
        node = by_instance.get(instance.id)
        first_seen = known.first_seen if known is not None else now
        joined = _has_joined(spec, node, known, now)
        state = _state(spec, instance, node, known, joined, now)
        since = known.since if known is not None and known.state is state else now
        states[instance.id] = Tracked(state, since, first_seen, joined)
    return states


def _has_joined(spec: PoolSpec, node: ScalingNode | None, known: Tracked | None, now: float) -> bool:
    """Return whether the node has joined.

    A new leader has no memory of the node, so it assumes that a node older than the join timeout has joined.
    """
    if known is not None and known.joined:
        return True
    if node is None:
        return False
    return node.ready or (known is None and now - node.created_at > spec.join_timeout_s)


def _state(
    spec: PoolSpec, instance: Instance, node: ScalingNode | None, known: Tracked | None, joined: bool, now: float
) -> NodeState:
    if instance.terminating:
        return NodeState.DELETING
    if known is not None and known.state is NodeState.DELETING and now - known.since < DELETE_AGAIN_S:
        return NodeState.DELETING
    age_s = now - (known.first_seen if known is not None else now)
    if node is None:
        if joined:
            return NodeState.UNREADY
        return NodeState.OVERDUE if age_s > spec.join_timeout_s else NodeState.LAUNCHING
    if node.draining:
        return NodeState.DRAINING
    if not node.ready:
        if joined or node.occupied:
            return NodeState.UNREADY
        return NodeState.OVERDUE if age_s > spec.join_timeout_s else NodeState.JOINING
    if node.occupied:
        return NodeState.IN_USE
    if node.quarantined:
        return NodeState.HELD
    if node.keeps_away:
        young = now - node.created_at <= spec.join_timeout_s if known is None else known.state in _NEWCOMERS
        return NodeState.JOINING if young and age_s <= 2 * spec.join_timeout_s else NodeState.HELD
    if known is None or known.state in _UNSETTLED:
        return NodeState.SETTLING
    if known.state is NodeState.SETTLING and now - known.since < SETTLE_S:
        return NodeState.SETTLING
    return NodeState.IDLE
