"""Computes changes with which a gang would run: more nodes, ended gangs, a removed constraint."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from muster.api.trust import Doubt
from muster.api.words import counted
from muster.kube.objects.affinity import Toleration
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.node_class import NEEDS_NONE, NodeClass
from muster.scheduler.nodes.node_record import CLOSING
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import UNSCHEDULABLE, Matcher
from muster.scheduler.placement.place import candidates
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits
from muster.scheduler.reasons import NodeWhy
from muster.scheduler.snapshot import Snapshot

_Known = dict[tuple[Bucket, tuple[PodClass, ...]], int]
"""Cache: the room that one node of a bucket gains when pods of these classes leave. Equal nodes share one entry."""
_NOT_READY: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints that the node lifecycle controller removes when a node is ready again."""


class ChangeKind(StrEnum):
    """Kinds of changes."""

    CREATE_PODS = "CreatePods"
    DROP_SELECTOR = "DropSelector"
    TOLERATE = "Tolerate"
    BORROW = "Borrow"
    UNCORDON = "Uncordon"
    NODES_READY = "NodesReady"
    NODES_TESTED = "NodesTested"
    GANG_ENDS = "GangEnds"
    ADD_NODES = "AddNodes"
    FEWER_PER_NODE = "FewerPerNode"


class Change(msgspec.Struct, frozen=True):
    """A change that would let the gang run."""

    kind: ChangeKind
    count: int = 0
    detail: str = ""

    def text(self) -> str:
        """Return the change in a few words."""
        nodes = counted(self.count, "node")
        return {
            ChangeKind.CREATE_PODS: f"{counted(self.count, 'pod')} more",
            ChangeKind.DROP_SELECTOR: f"remove nodeSelector {self.detail}",
            ChangeKind.TOLERATE: f"tolerate taint {self.detail}",
            ChangeKind.BORROW: "borrow nodes of other teams (--borrow, spec.borrow)",
            ChangeKind.UNCORDON: f"uncordon {nodes} (kubectl uncordon NODE)",
            ChangeKind.NODES_READY: f"{nodes} ready again",
            ChangeKind.NODES_TESTED: f"{nodes} tested",
            ChangeKind.GANG_ENDS: f"{self.detail} {'ends' if self.count == 1 else 'end'}",
            ChangeKind.ADD_NODES: f"+{nodes}",
            ChangeKind.FEWER_PER_NODE: self.detail + (f", and +{nodes}" if self.count else ""),
        }[self.kind]


def room(ledger: Ledger, matcher: Matcher, cls: PodClass, banned: Collection[str] = ()) -> int:
    """Return how many pods of the class fit, without banned nodes."""
    return sum(candidate.room for candidate in candidates(ledger, matcher, cls, banned=banned))


def changes(
    snapshot: Snapshot,
    matcher: Matcher,
    gang: Gang,
    cls: PodClass,
    need: int,
    have: int,
    beside: Collection[str] = (),
    leaving: Collection[str] = (),
) -> tuple[Change, ...]:
    """Return changes that make room for `need` pods if `have` of them fit now. The least intrusive change is first.

    `beside` are nodes of the gang's other slots. `leaving` are keys of gangs that leave anyway when the gang fits;
    `have` counts their room.
    """
    missing = need - have
    found = [*_dropped_constraints(snapshot, cls, need, beside)]
    if not gang.borrows and snapshot.owners and _room_if_borrowed(snapshot, cls, beside) >= need:
        found.append(Change(ChangeKind.BORROW))
    for why, (kind, mend) in _MENDED.items():
        needed = _nodes_needed(_blocked_only_by(snapshot, matcher, cls, why, mend, beside), missing)
        if needed:
            found.append(Change(kind, needed))
    found += _gangs_ending(snapshot, matcher, gang, cls, missing, beside, leaving)
    like = best_kind(snapshot, matcher, cls)
    if like is not None:
        found.append(Change(ChangeKind.ADD_NODES, -(-missing // fits(cls, like))))
    else:
        found += _fewer_per_node(snapshot, cls, need)
    return tuple(found)


def best_kind(snapshot: Snapshot, matcher: Matcher, cls: PodClass) -> Bucket | None:
    """Return the empty bucket of the nodes that take most pods of the class; None if no node takes any."""
    serving = [
        bucket
        for bucket in snapshot.empty_buckets.values()
        if matcher.match(cls, bucket.node_class).reason is None and fits(cls, bucket)
    ]
    return max(serving, key=lambda bucket: (fits(cls, bucket), -bucket.node_class.number), default=None)


def _fewer_per_node(snapshot: Snapshot, cls: PodClass, need: int) -> Iterable[Change]:
    """Yield a change to fewer devices per node, if the pod requests more of one device than any node has."""
    matcher = Matcher(pools=snapshot.pools)
    for resource, wanted in cls.request.items():
        most = max((bucket.node_class.allocatable.get(resource, 0) for bucket in snapshot.buckets.values()), default=0)
        if "/" not in resource or not 0 < most < wanted:  # devices only: memory cannot be split this way
            continue
        times = next(factor for factor in range(2, wanted + 1) if wanted % factor == 0 and wanted // factor <= most)
        smaller = dataclasses.replace(cls, request={**cls.request, resource: wanted // times})
        if any(matcher.match(smaller, bucket.node_class).reason is None for bucket in snapshot.buckets.values()):
            text = f"{wanted // times} {resource} per node and {times} times the replicas (the largest node has {most})"
            short = need * times - room(Ledger(snapshot.buckets), matcher, smaller)
            yield Change(ChangeKind.FEWER_PER_NODE, max(0, short), text)


def _dropped_constraints(snapshot: Snapshot, cls: PodClass, need: int, beside: Collection[str]) -> Iterable[Change]:
    """Yield each constraint whose removal alone makes enough room."""
    ledger, pools = Ledger(snapshot.buckets), snapshot.pools
    for key, value in cls.selector.items():
        selector = {other: wanted for other, wanted in cls.selector.items() if other != key}
        if room(ledger, Matcher(pools=pools), dataclasses.replace(cls, selector=selector), beside) >= need:
            yield Change(ChangeKind.DROP_SELECTOR, detail=f"{key}={value}")
    taints = {taint for bucket in snapshot.buckets.values() for taint in _hard_taints(bucket)}
    for key, effect in sorted(taints):
        if key in (snapshot.team_key, UNSCHEDULABLE.key) or key in CLOSING:
            continue  # borrowing and uncordoning are changes of their own; broken and untested nodes are never used
        more = (*cls.tolerations, Toleration(key=key, operator="Exists", effect=effect))
        if room(ledger, Matcher(pools=pools), dataclasses.replace(cls, tolerations=more), beside) >= need:
            yield Change(ChangeKind.TOLERATE, detail=f"{key}:{effect}")


def _room_if_borrowed(snapshot: Snapshot, cls: PodClass, beside: Collection[str]) -> int:
    """Return how many pods would fit if they tolerated every team's taint and did not require a team's nodes."""
    key = snapshot.team_key
    terms = cls.terms and tuple(
        msgspec.structs.replace(
            term, match_expressions=tuple(each for each in term.match_expressions if each.key != key)
        )
        for term in cls.terms
    )
    said = [term for term in terms or () if term.match_expressions or term.match_fields]
    borrowing = dataclasses.replace(
        cls,
        selector={label: value for label, value in cls.selector.items() if label != key},
        terms=tuple(said) or None,  # a term with only the team requirement is empty now
        tolerations=(*cls.tolerations, Toleration(key=key, operator="Exists")),
    )
    matcher = Matcher(pools=snapshot.pools, team_key=key)
    return room(Ledger(snapshot.buckets), matcher, borrowing, beside)


def _hard_taints(bucket: Bucket) -> list[tuple[str, str]]:
    return [(taint.key, taint.effect) for taint in bucket.node_class.taints if taint.effect != "PreferNoSchedule"]


def _uncordoned(node: NodeClass) -> NodeClass:
    taints = tuple(taint for taint in node.taints if taint.key != UNSCHEDULABLE.key)
    return dataclasses.replace(node, unschedulable=False, taints=taints)


def _ready(node: NodeClass) -> NodeClass:
    taints = tuple(taint for taint in node.taints if taint.key not in _NOT_READY)
    return dataclasses.replace(node, problem="", taints=taints)


def _tested(node: NodeClass) -> NodeClass:
    return dataclasses.replace(node, doubt=Doubt.NONE, taints=())


def _tested_lately(node: NodeClass) -> NodeClass:
    return dataclasses.replace(node, tested_within_h=NEEDS_NONE)


_MENDED: Mapping[NodeWhy, tuple[ChangeKind, Callable[[NodeClass], NodeClass]]] = MappingProxyType(
    {
        NodeWhy.UNSCHEDULABLE: (ChangeKind.UNCORDON, _uncordoned),
        NodeWhy.NOT_READY: (ChangeKind.NODES_READY, _ready),
        NodeWhy.UNTESTED: (ChangeKind.NODES_TESTED, _tested),
        NodeWhy.TESTED_TOO_LONG_AGO: (ChangeKind.NODES_TESTED, _tested_lately),
    }
)
"""Fixable reasons why nodes are rejected: the change, and a node's class after it."""


def _blocked_only_by(
    snapshot: Snapshot,
    matcher: Matcher,
    cls: PodClass,
    why: NodeWhy,
    mend: Callable[[NodeClass], NodeClass],
    beside: Collection[str],
) -> list[int]:
    """Return for each node with a single fixable reason how many pods it would take."""
    times = []
    mended = Matcher(pools=snapshot.pools)
    for bucket in snapshot.buckets.values():
        reason = matcher.match(cls, bucket.node_class).reason
        if reason is None or reason.why is not why:
            continue
        match = mended.match(cls, mend(bucket.node_class))
        if match.reason is None and fits(cls, bucket):
            times += [fits(cls, bucket)] * sum(match.serves(name) and name not in beside for name in bucket.names)
    return times


def _nodes_needed(times: list[int], missing: int) -> int:
    """Return how many of these nodes are needed for `missing` pods; 0 if all nodes together are not enough."""
    for count, each in enumerate(sorted(times, reverse=True), start=1):
        missing -= each
        if missing <= 0:
            return count
    return 0


def _gangs_ending(
    snapshot: Snapshot,
    matcher: Matcher,
    gang: Gang,
    cls: PodClass,
    missing: int,
    beside: Collection[str],
    leaving: Collection[str],
) -> list[Change]:
    """Return the one gang whose end is enough (lowest priority, then smallest), else the fewest large ones."""
    gains: list[tuple[int, int, str]] = []
    known: _Known = {}
    for other in snapshot.gangs.values():
        if other is not gang and other.key not in leaving:
            gain = _gain(snapshot, matcher, other, cls, beside, known)
            if gain:
                gains.append((other.priority, gain, other.full_name))
    enough = [item for item in gains if item[1] >= missing]
    if enough:
        return [Change(ChangeKind.GANG_ENDS, 1, min(enough)[2])]
    together: list[str] = []
    for _, gain, name in sorted(gains, key=lambda item: (-item[1], item[0], item[2])):
        together.append(name)
        missing -= gain
        if missing <= 0:
            return [Change(ChangeKind.GANG_ENDS, len(together), " and ".join(together))] if len(together) <= 3 else []
    return []


def _gain(
    snapshot: Snapshot, matcher: Matcher, gang: Gang, cls: PodClass, beside: Collection[str], known: _Known
) -> int:
    """Return how many more pods of the class would fit without the gang."""
    if not gang.holds and len(gang.pending) == len(gang.pods):
        return 0  # the gang is not on any node
    leaving: dict[str, tuple[PodClass, ...]] = {}
    for name, taken in gang.takes():
        leaving[name] = (*leaving.get(name, ()), taken)
    gain = 0
    for name, classes in leaving.items():
        bucket = snapshot.nodes[name].bucket
        if bucket is None or name in beside:
            continue
        made = known.get((bucket, classes))
        if made is None:
            made = known[bucket, classes] = _room_made(cls, bucket, classes)
        if made and matcher.match(cls, bucket.node_class).serves(name):
            gain += made
    return gain


def _room_made(cls: PodClass, bucket: Bucket, leaving: Iterable[PodClass]) -> int:
    """Return how many more pods of the class fit on a node of the bucket after these pods left it."""
    after = dict(bucket.free)
    for taken in leaving:
        for resource, value in taken.request.items():
            after[resource] = after.get(resource, 0) + value
    most = 1 if cls.alone else sys.maxsize
    return min(times_fits(cls.request, after), most) - min(times_fits(cls.request, bucket.free), most)
