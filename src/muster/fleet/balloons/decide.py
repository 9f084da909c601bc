"""How many balloons each pool has now: never more than there are nodes that can take one, so that none waits.

A balloon that waits is worse than none: who watches Deployments sees a red one, and autoscalers buy a node for it
(Cluster Autoscaler, FAQ: pods with a priority of -10 or more may trigger a scale-up). So nodes with real work on them,
or promised to a gang, do not count; neither do those that are to be left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.fleet.balloons.config import BalloonPool
from muster.kube.node import Taint
from muster.kube.taints import find_untolerated_taint

WAITS_S = 15.0
"""A balloon without a node for longer is not wanted by the scheduler: a gang in its queue comes before it."""
TRY_AGAIN_S = 300.0
"""After that the pool has no more balloons than were placed, for so long."""
Amounts = Mapping[str, int]


class NodeUse(StrEnum):
    """What a node of a pool is to balloons. Values are in metrics: never rename one."""

    USABLE = "Usable"
    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    TAINTED = "Tainted"
    """It has a taint that the pool does not tolerate: joining, quarantined, of a team, under pressure."""
    PROMISED = "Promised"
    """A gang has its slot there, whether its pod runs at the moment or not."""
    FULL = "Full"
    """What runs there leaves no room for a balloon."""


class NodeView(msgspec.Struct, frozen=True):
    """A node; `taken` is what pods other than balloons take of `allocatable`, `promised` whether a gang has a slot."""

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
        node: "" while it waits for one.
        since: when the controller first saw it, by its own clock, in seconds since the epoch.
        marked: it is the first to go when its Deployment shrinks.
    """

    namespace: str
    name: str
    uid: str
    pool: str
    node: str = ""
    since: float = 0.0
    marked: bool = False


class Known(msgspec.Struct, frozen=True):
    """A pool's Deployment as it is.

    Attributes:
        pool: the configuration it was written for; None where that is unreadable.
        stale: its template is not what we would write for that configuration now.
    """

    name: str
    uid: str
    replicas: int
    pool: BalloonPool | None
    stale: bool = False


class Cap(msgspec.Struct, frozen=True):
    """No more balloons than `replicas` until then, or until more than `usable` nodes can take one: they would wait."""

    replicas: int
    usable: int
    until: float


class View(msgspec.Struct, frozen=True):
    """All that is known.

    Attributes:
        pools: as configured; None where the configuration cannot be read: then each Deployment's own counts.
        nodes: all nodes.
        balloons: that are not being deleted.
        deployments: by the name of their pool.
        caps: from the last plan, by pool.
    """

    pools: tuple[BalloonPool, ...] | None
    nodes: tuple[NodeView, ...] = ()
    balloons: tuple[Balloon, ...] = ()
    deployments: Mapping[str, Known] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})


class Put(msgspec.Struct, frozen=True):
    """Make the pool's Deployment, or write its template anew where it is there already."""

    pool: BalloonPool
    replicas: int
    known: Known | None


class Scale(msgspec.Struct, frozen=True):
    """Change how many balloons there are."""

    known: Known
    replicas: int


class Drop(msgspec.Struct, frozen=True):
    """Delete a Deployment: its pool has no balloons any more."""

    known: Known


class Mark(msgspec.Struct, frozen=True):
    """Say that this balloon is the one to go, before its Deployment shrinks: so no other goes, none is made anew."""

    balloon: Balloon


class Remove(msgspec.Struct, frozen=True):
    """Delete a balloon on a node that is to be left alone; another one comes elsewhere if there is room."""

    balloon: Balloon
    why: NodeUse


Action = Put | Mark | Scale | Drop | Remove


class PoolState(msgspec.Struct, frozen=True):
    """A pool's balloons: configured, asked for now, on a node, without one; and its nodes by what they are to it."""

    configured: int
    replicas: int
    placed: int
    waiting: int
    nodes: Mapping[NodeUse, int]


class Plan(msgspec.Struct, frozen=True):
    """What is to be written, in this order; `wake_at` is when only the time will have changed something."""

    actions: tuple[Action, ...]
    pools: Mapping[str, PoolState]
    caps: Mapping[str, Cap]
    wake_at: float | None = None


def use_of(pool: BalloonPool, request: Amounts, node: NodeView) -> NodeUse | None:
    """What the node is to the pool's balloons, which take `request` each; None where it is not of the pool."""
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
    """Return the writes that bring every pool to as many balloons as it can hold; none where all is as it should be."""
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
            # Those without a node go first of all by themselves (Kubernetes: ReplicaSet, scaling down).
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
    """Balloons that wait for long are taken back, and not tried again for a while."""
    if any(not balloon.node and now - balloon.since >= WAITS_S for balloon in own):
        return Cap(placed, usable, now + TRY_AGAIN_S)
    return before if before is not None and now < before.until and usable <= before.usable else None


def _misplaced(own: Iterable[Balloon], uses: Mapping[str, NodeUse]) -> list[Balloon]:
    """Balloons on nodes that are not theirs any more: first those on nodes that are to be left alone, then by name."""
    found = [each for each in own if each.node in uses and uses[each.node] is not NodeUse.USABLE]
    return sorted(found, key=lambda each: (uses[each.node] not in _LEFT_ALONE, each.name))
