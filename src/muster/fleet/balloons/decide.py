"""Decides how many balloons each pool has: never more than nodes that can take one, so that none stays pending.

A pending balloon does harm: Deployments look unhealthy, and autoscalers buy a node for it (Cluster Autoscaler, FAQ:
pods with a priority of -10 or more may trigger a scale-up). So nodes do not count if real work runs there, a gang has a
slot there, or they must be left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from muster.fleet.balloons.config import BalloonPool
from muster.fleet.balloons.plan import Action, Drop, Mark, Plan, PoolState, Put, Remove, Scale
from muster.fleet.balloons.snapshot import Amounts, Balloon, BalloonNode, Cap, NodeUse, View
from muster.kube.objects.taints import find_untolerated_taint

WAITS_S = 15.0
"""If a balloon waits longer than this, the scheduler does not place it: a gang in its queue comes first."""
TRY_AGAIN_S = 300.0
"""How long the number of balloons of a pool is then limited to those that were placed."""


def use_of(pool: BalloonPool, request: Amounts, node: BalloonNode) -> NodeUse | None:
    """Return whether the pool's balloons can use the node, each with `request`; None if it is not in the pool."""
    if any(node.labels.get(key) != value for key, value in pool.node_selector.items()):
        return None
    if not node.ready:
        return NodeUse.NOT_READY
    if node.cordoned or node.leaving:
        return NodeUse.CORDONED
    if find_untolerated_taint(node.taints, pool.tolerations) is not None:
        return NodeUse.TAINTED
    if node.promised:
        return NodeUse.PROMISED
    for resource, amount in request.items():
        if node.allocatable.get(resource, 0) - node.taken.get(resource, 0) < amount:
            return NodeUse.FULL
    return NodeUse.USABLE


_LEFT_ALONE = frozenset({NodeUse.NOT_READY, NodeUse.CORDONED, NodeUse.TAINTED})


def decide(view: View, now: float) -> Plan:
    """Return the writes that give each pool as many balloons as fit; an empty plan if nothing is to be done."""
    pools = view.pools
    if pools is None:
        pools = tuple(known.pool for known in view.deployments.values() if known.pool is not None)
    actions: list[Action] = []
    states: dict[str, PoolState] = {}
    caps: dict[str, Cap] = {}
    wake: list[float] = []
    for pool in pools:
        request = pool.request
        uses = {node.name: use for node in view.nodes if (use := use_of(pool, request, node)) is not None}
        own = [balloon for balloon in view.balloons if balloon.pool == pool.name]
        usable = sum(use is NodeUse.USABLE for use in uses.values())
        placed = sum(uses.get(balloon.node) is NodeUse.USABLE for balloon in own)
        cap = _cap(view.caps.get(pool.name), own, placed, usable, now)
        replicas = min(pool.replicas, usable)
        if cap is not None:
            caps[pool.name] = cap
            replicas = min(replicas, max(cap.replicas, placed))
            wake.append(cap.until)
        known = view.deployments.get(pool.name)
        waiting = [balloon for balloon in own if not balloon.node]
        going: list[Balloon] = []
        if known is None or known.pool != pool or known.stale:
            actions.append(Put(pool, replicas, known))
        elif known.replicas != replicas:
            # Pods without a node go first anyway (Kubernetes: ReplicaSet, scaling down).
            going = _misplaced(own, uses)[: max(0, known.replicas - replicas - len(waiting))]
            actions += [Mark(balloon) for balloon in going if not balloon.marked]
            actions.append(Scale(known, replicas))
        actions += [
            Remove(balloon, use)
            for balloon in _misplaced(own, uses)
            if (use := uses[balloon.node]) in _LEFT_ALONE and balloon not in going
        ]
        wake += [balloon.since + WAITS_S for balloon in waiting if balloon.since + WAITS_S > now]
        states[pool.name] = PoolState(
            pool.replicas, replicas, sum(bool(balloon.node) for balloon in own), len(waiting), Counter(uses.values())
        )
    names = {pool.name for pool in pools}
    if view.pools is not None:
        actions += [Drop(known) for name, known in sorted(view.deployments.items()) if name not in names]
    return Plan(tuple(actions), states, caps, min(wake, default=None))


def _cap(before: Cap | None, own: Iterable[Balloon], placed: int, usable: int, now: float) -> Cap | None:
    """Return a limit if balloons have waited too long, so that they are deleted and not retried for a while."""
    if any(not balloon.node and now - balloon.since >= WAITS_S for balloon in own):
        return Cap(placed, usable, now + TRY_AGAIN_S)
    return before if before is not None and now < before.until and usable <= before.usable else None


def _misplaced(own: Iterable[Balloon], uses: Mapping[str, NodeUse]) -> list[Balloon]:
    """Return balloons on nodes that they must leave: first those on nodes that must be left alone, then by name."""
    found = [each for each in own if each.node in uses and uses[each.node] is not NodeUse.USABLE]
    return sorted(found, key=lambda each: (uses[each.node] not in _LEFT_ALONE, each.name))
