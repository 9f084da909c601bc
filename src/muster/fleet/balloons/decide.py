"""Decides how many balloons each pool has: never more than nodes that can take one, so that none stays pending.

A pending balloon does harm: Deployments look unhealthy, and autoscalers buy a node for it (Cluster Autoscaler, FAQ:
pods with a priority of -10 or more may trigger a scale-up). So nodes do not count if real work runs there, a gang has a
slot there, or they must be left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.fleet.balloons.config import BalloonPool
from muster.kube.objects.node import Taint
from muster.kube.objects.taints import find_untolerated_taint

WAITS_S = 15.0
"""If a balloon waits longer than this, the scheduler does not want to place it: a gang in its queue comes first."""
TRY_AGAIN_S = 300.0
"""After that, the pool has no more balloons than were placed, for this long."""
Amounts = Mapping[str, int]


class NodeUse(StrEnum):
    """The use of a pool's node for balloons. Values are in metrics: never rename one."""

    USABLE = "Usable"
    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    TAINTED = "Tainted"
    """It has a taint that the pool does not tolerate: joining, quarantined, of a team, under pressure."""
    PROMISED = "Promised"
    """A gang has a slot there, whether its pod runs at the moment or not."""
    FULL = "Full"
    """Its pods leave no room for a balloon."""


class NodeView(msgspec.Struct, frozen=True):
    """A node. `taken` is what pods except balloons take of `allocatable`; `promised`: a gang has a slot there."""

    name: str
    labels: Mapping[str, str]
    ready: bool = True
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = MappingProxyType({})
    taken: Amounts = MappingProxyType({})
    promised: bool = False


class Balloon(msgspec.Struct, frozen=True):
    """A balloon that is not being deleted.

    Attributes:
        node: its node; "" while it waits for one.
        since: when the controller first saw it, by its own clock, in seconds since the epoch.
        marked: it goes first when its Deployment shrinks.
    """

    namespace: str
    name: str
    uid: str
    pool: str
    node: str = ""
    since: float = 0.0
    marked: bool = False


class Known(msgspec.Struct, frozen=True):
    """A pool's Deployment.

    Attributes:
        pool: the configuration for which it was written; None if that cannot be read.
        stale: its template differs from what we would write for that configuration now.
    """

    name: str
    uid: str
    replicas: int
    pool: BalloonPool | None
    stale: bool = False


class Cap(msgspec.Struct, frozen=True):
    """A limit on balloons until a time, or until more than `usable` nodes can take one: further ones would wait."""

    replicas: int
    usable: int
    until: float


class View(msgspec.Struct, frozen=True):
    """The input of decide.

    Attributes:
        pools: as configured; None if the text is not valid: then the configuration in each Deployment applies.
        nodes: all nodes.
        balloons: without those that are being deleted.
        deployments: by pool name.
        caps: limits from the last plan, by pool.
    """

    pools: tuple[BalloonPool, ...] | None
    nodes: tuple[NodeView, ...] = ()
    balloons: tuple[Balloon, ...] = ()
    deployments: Mapping[str, Known] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})


class Put(msgspec.Struct, frozen=True):
    """Create the pool's Deployment, or replace its template if it exists."""

    pool: BalloonPool
    replicas: int
    known: Known | None


class Scale(msgspec.Struct, frozen=True):
    """Change the number of balloons."""

    known: Known
    replicas: int


class Drop(msgspec.Struct, frozen=True):
    """Delete a Deployment, because its pool no longer has balloons."""

    known: Known


class Mark(msgspec.Struct, frozen=True):
    """Mark a balloon to go first before its Deployment shrinks, so that others stay and it is not recreated."""

    balloon: Balloon


class Remove(msgspec.Struct, frozen=True):
    """Delete a balloon on a node that must be left alone. Another one is created elsewhere if there is room."""

    balloon: Balloon
    why: NodeUse


Action = Put | Mark | Scale | Drop | Remove


class PoolState(msgspec.Struct, frozen=True):
    """A pool's balloons: configured, requested now, on a node, waiting; and its nodes by use."""

    configured: int
    replicas: int
    placed: int
    waiting: int
    nodes: Mapping[NodeUse, int]


class Plan(msgspec.Struct, frozen=True):
    """The writes in order. `wake_at` is when to plan again even if nothing changes."""

    actions: tuple[Action, ...]
    pools: Mapping[str, PoolState]
    caps: Mapping[str, Cap]
    wake_at: float | None = None


def use_of(pool: BalloonPool, request: Amounts, node: NodeView) -> NodeUse | None:
    """Return what the node means for the pool's balloons, which take `request` each; None if it is not of the pool."""
    if any(node.labels.get(key) != value for key, value in pool.node_selector.items()):
        return None
    if not node.ready:
        return NodeUse.NOT_READY
    if node.cordoned:
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
