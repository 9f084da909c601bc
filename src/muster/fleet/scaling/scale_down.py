"""Scale-down: long-idle nodes are cordoned, checked again and deleted; instances that join too late are replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.fleet.scaling.plan import Action, Cordon, Delete, ForgetNode, Uncordon
from muster.fleet.scaling.pool_memory import blocked, had, silent
from muster.fleet.scaling.scale_up import floor
from muster.fleet.scaling.snapshot import Group, PoolMemory, PoolSpec, ScalingNode
from muster.fleet.scaling.states import NodeState, Tracked

CORDON_SETTLES_S = 15.0
"""After this, schedulers know the cordon, and the pods that they had bound before are visible."""
AT_ONCE = 10
"""How many nodes of a pool may be on their way out at once."""


def overdue(
    pool: PoolSpec,
    group: Group,
    nodes: Iterable[ScalingNode],
    states: Mapping[str, Tracked],
    memory: PoolMemory,
    now: float,
) -> list[Delete]:
    """Return instances to delete because they did not join in time. At the pool's least size they are replaced."""
    if silent(memory, now) or not group.deletes:
        return []
    by_instance = {node.instance: node for node in nodes}
    spare = memory.asked - floor(pool, group)
    actions = []
    for instance, tracked in sorted(states.items()):
        if tracked.state is not NodeState.OVERDUE:
            continue
        replace = spare <= 0
        if replace and blocked(memory, now):
            continue
        spare -= not replace
        node = by_instance.get(instance)
        name, uid = (node.name, node.uid) if node is not None else ("", "")
        actions.append(Delete(pool.name, instance, name, uid, f"not joined in {pool.join_timeout_s:g} s", replace))
    return actions


def shrink(
    pool: PoolSpec,
    group: Group,
    nodes: Iterable[ScalingNode],
    states: Mapping[str, Tracked],
    memory: PoolMemory,
    wanted: bool,
    now: float,
) -> list[Action]:
    """Return which nodes to cordon, uncordon or delete. `wanted`: a gang waits for nodes of the pool."""
    by_instance = {node.instance: node for node in nodes}
    stuck = silent(memory, now)
    count = had(states)
    spare = max(memory.asked, count) - floor(pool, group)
    surplus = count - memory.asked  # e.g. a deletion was lost: the size is already right without these
    actions: list[Action] = []
    leaving = 0
    for instance, tracked in sorted(states.items(), key=lambda item: (item[1].since, item[0])):
        node = by_instance.get(instance)
        if tracked.state is NodeState.DRAINING and node is not None:
            reason = _stays(node, wanted, spare)
            if reason:
                actions.append(Uncordon(pool.name, node.name, node.uid, reason))
                continue
            spare -= 1
            leaving += 1
            if not stuck and now - tracked.since >= CORDON_SETTLES_S:
                actions.append(Delete(pool.name, instance, node.name, node.uid, "idle", replace=surplus > 0))
                surplus -= 1
        elif tracked.state is NodeState.DELETING:
            leaving += 1
        elif node is not None and node.abandoned:
            actions.append(Uncordon(pool.name, node.name, node.uid, "it was uncordoned by another user or tool"))
    if group.deletes and not wanted and not stuck and now - memory.grown_at >= pool.cool_down_s:
        actions += _idle(pool, by_instance, states, min(spare, AT_ONCE - leaving), now)
    return actions


def forget(pools: Iterable[PoolSpec], groups: Mapping[str, Group], nodes: Iterable[ScalingNode]) -> list[ForgetNode]:
    """Return the Node objects of instances that we deleted and that no longer exist."""
    present = {pool.name: {each.id for each in groups[pool.name].instances} for pool in pools if pool.name in groups}
    return [
        ForgetNode(node.pool, node.name, node.uid)
        for node in nodes
        if node.deleting and not node.ready and node.pool in present and node.instance not in present[node.pool]
    ]


def next_idle(pool: PoolSpec, states: Mapping[str, Tracked], memory: PoolMemory, now: float) -> float | None:
    """Return when the next node is idle or cordoned for long enough, or late; None without such a node."""
    due = []
    for tracked in states.values():
        if tracked.state is NodeState.IDLE:
            due.append(max(tracked.since + pool.idle_s, memory.grown_at + pool.cool_down_s))
        elif tracked.state is NodeState.DRAINING:
            due.append(tracked.since + CORDON_SETTLES_S)
        elif tracked.state in (NodeState.LAUNCHING, NodeState.JOINING):
            due.append(tracked.first_seen + pool.join_timeout_s)
    return min((at for at in due if at > now), default=None)


def _stays(node: ScalingNode, wanted: bool, spare: int) -> str:
    """Return why a cordoned node is kept; "" if it is deleted."""
    if node.occupied:
        return f"in use again: {node.occupied}"
    if not node.may_go:
        return "it is annotated to stay"
    if node.quarantined:
        return "it is in quarantine: an operator must look at it first"
    if wanted:
        return "a gang waits for nodes"
    return "" if spare > 0 else "the pool is at its least size"


def _idle(
    pool: PoolSpec, nodes: Mapping[str, ScalingNode], states: Mapping[str, Tracked], room: int, now: float
) -> list[Cordon]:
    """Return cordons for the nodes that are idle longest, at most `room`."""
    idle = sorted(
        (tracked.since, instance)
        for instance, tracked in states.items()
        if tracked.state is NodeState.IDLE and now - tracked.since >= pool.idle_s and nodes[instance].may_go
    )
    return [
        Cordon(pool.name, instance, nodes[instance].name, nodes[instance].uid, f"idle for {now - since:.0f} s")
        for since, instance in idle[: max(0, room)]
    ]
