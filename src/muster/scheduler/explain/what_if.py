"""What would admit a gang: nodes more, gangs gone, a constraint dropped. Nothing here touches the snapshot."""

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
from muster.kube.affinity import Toleration
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.nodes.buckets import Bucket
from muster.scheduler.nodes.node_class import CLOSING, NodeClass
from muster.scheduler.nodes.trust import NEEDS_NONE
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import UNSCHEDULABLE, Matcher
from muster.scheduler.placement.place import candidates
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits
from muster.scheduler.reasons import NodeWhy
from muster.scheduler.snapshot import Snapshot

_Known = dict[tuple[Bucket, tuple[PodClass, ...]], int]
"""The room that one node of a bucket gains when pods of these classes leave it: nodes that are alike are asked once."""
_NOT_READY: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints that the node lifecycle controller takes off a node that is ready again."""


class ChangeKind(StrEnum):
    """What could be done."""

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
    """A change that would admit the gang."""

    kind: ChangeKind
    count: int = 0
    detail: str = ""

    def text(self) -> str:
        """Say it in a few words."""
        nodes = counted(self.count, "node")
        return {
            ChangeKind.CREATE_PODS: f"{counted(self.count, 'pod')} more",
            ChangeKind.DROP_SELECTOR: f"remove nodeSelector {self.detail}",
            ChangeKind.TOLERATE: f"tolerate taint {self.detail}",
            ChangeKind.BORROW: "borrow nodes of other teams (--borrow, spec.borrow)",
            ChangeKind.UNCORDON: f"uncordon {nodes} (kubectl uncordon NODE)",
            ChangeKind.NODES_READY: f"{nodes} ready again",
            ChangeKind.NODES_TESTED: f"{nodes} tested",
            ChangeKind.GANG_ENDS: f"{self.detail} ends",
            ChangeKind.ADD_NODES: f"+{nodes}",
            ChangeKind.FEWER_PER_NODE: self.detail + (f", and +{nodes}" if self.count else ""),
        }[self.kind]


def room(ledger: Ledger, matcher: Matcher, cls: PodClass, banned: Collection[str] = ()) -> int:
    """Return for how many pods of the class there is room, not counting nodes that are banned."""
    return sum(candidate.room for candidate in candidates(ledger, matcher, cls, (), banned))


def changes(
    snapshot: Snapshot, gang: Gang, cls: PodClass, need: int, have: int, beside: Collection[str] = ()
) -> tuple[Change, ...]:
    """Return what would admit `need` pods where there is room for `have`, the least intrusive first.

    `beside` are nodes of the gang's other slots.
    """
    missing = need - have
    found = [*_dropped_constraints(snapshot, cls, need, beside)]
    if not gang.borrows and snapshot.owners and _room_if_borrowed(snapshot, cls, beside) >= need:
        found.append(Change(ChangeKind.BORROW))
    for why, (kind, mend) in _MENDED.items():
        needed = _nodes_needed(_blocked_only_by(snapshot, cls, why, mend, beside), missing)
        if needed:
            found.append(Change(kind, needed))
    found += _gangs_ending(snapshot, gang, cls, missing, beside)
    like = best_kind(snapshot, cls)
    if like is not None:
        found.append(Change(ChangeKind.ADD_NODES, -(-missing // fits(cls, like))))
    else:
        found += _fewer_per_node(snapshot, cls, need)
    return tuple(found)


def best_kind(snapshot: Snapshot, cls: PodClass) -> Bucket | None:
    """Return the empty form of the nodes that take most pods of the class; None where none takes any."""
    serving = [
        bucket
        for bucket in snapshot.empty_buckets.values()
        if snapshot.matcher.match(cls, bucket.node_class).reason is None and fits(cls, bucket)
    ]
    return max(serving, key=lambda bucket: (fits(cls, bucket), -bucket.node_class.number), default=None)


def _fewer_per_node(snapshot: Snapshot, cls: PodClass, need: int) -> Iterable[Change]:
    """Fewer devices a node on more nodes, where a pod asks for more of them than any node has and for nothing else."""
    matcher = Matcher(pools=snapshot.matcher.pools)
    for resource, wanted in cls.request.items():
        most = max((bucket.node_class.allocatable.get(resource, 0) for bucket in snapshot.buckets.values()), default=0)
        if "/" not in resource or not 0 < most < wanted:  # devices only: memory is not divided so
            continue
        times = next(factor for factor in range(2, wanted + 1) if wanted % factor == 0 and wanted // factor <= most)
        smaller = dataclasses.replace(cls, request={**cls.request, resource: wanted // times})
        if any(matcher.match(smaller, bucket.node_class).reason is None for bucket in snapshot.buckets.values()):
            text = f"{wanted // times} {resource} per node and {times} times the replicas (the largest node has {most})"
            short = need * times - room(Ledger(snapshot.buckets), matcher, smaller)
            yield Change(ChangeKind.FEWER_PER_NODE, max(0, short), text)


def _dropped_constraints(snapshot: Snapshot, cls: PodClass, need: int, beside: Collection[str]) -> Iterable[Change]:
    """Constraints of which dropping one alone is enough."""
    ledger, pools = Ledger(snapshot.buckets), snapshot.matcher.pools
    for key, value in cls.selector.items():
        selector = {other: wanted for other, wanted in cls.selector.items() if other != key}
        if room(ledger, Matcher(pools=pools), dataclasses.replace(cls, selector=selector), beside) >= need:
            yield Change(ChangeKind.DROP_SELECTOR, detail=f"{key}={value}")
    taints = {taint for bucket in snapshot.buckets.values() for taint in _hard_taints(bucket)}
    for key, effect in sorted(taints):
        if key in (snapshot.matcher.team_key, UNSCHEDULABLE.key) or key in CLOSING:
            continue  # teams lend their nodes, cordoned ones are uncordoned; broken and untested ones are never used
        more = (*cls.tolerations, Toleration(key=key, operator="Exists", effect=effect))
        if room(ledger, Matcher(pools=pools), dataclasses.replace(cls, tolerations=more), beside) >= need:
            yield Change(ChangeKind.TOLERATE, detail=f"{key}:{effect}")


def _room_if_borrowed(snapshot: Snapshot, cls: PodClass, beside: Collection[str]) -> int:
    """For how many pods there would be room if they bore every team's taint and asked for no team's nodes."""
    key = snapshot.matcher.team_key
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
        terms=tuple(said) or None,  # one that asked for the team only asks for nothing now
        tolerations=(*cls.tolerations, Toleration(key=key, operator="Exists")),
    )
    matcher = Matcher(pools=snapshot.matcher.pools, team_key=key)
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
    snapshot: Snapshot, cls: PodClass, why: NodeWhy, mend: Callable[[NodeClass], NodeClass], beside: Collection[str]
) -> list[int]:
    """How many pods each node would take that serves but for one thing."""
    times = []
    matcher = Matcher(pools=snapshot.matcher.pools)
    for bucket in snapshot.buckets.values():
        reason = snapshot.matcher.match(cls, bucket.node_class).reason
        if reason is None or reason.why is not why:
            continue
        match = matcher.match(cls, mend(bucket.node_class))
        if match.reason is None and fits(cls, bucket):
            times += [fits(cls, bucket)] * sum(match.serves(name) and name not in beside for name in bucket.names)
    return times


def _nodes_needed(times: list[int], missing: int) -> int:
    """How many of the nodes make up for `missing` pods; 0 where all of them do not."""
    for count, each in enumerate(sorted(times, reverse=True), start=1):
        missing -= each
        if missing <= 0:
            return count
    return 0


def _gangs_ending(snapshot: Snapshot, gang: Gang, cls: PodClass, missing: int, beside: Collection[str]) -> list[Change]:
    """The gang whose end alone is enough (lowest priority, then smallest), else the few largest that are together."""
    gains: list[tuple[int, int, str]] = []
    known: _Known = {}
    for other in snapshot.gangs.values():
        if other is not gang:
            gain = _gain(snapshot, other, cls, beside, known)
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


def _gain(snapshot: Snapshot, gang: Gang, cls: PodClass, beside: Collection[str], known: _Known) -> int:
    """For how many more pods of the class there would be room without the gang."""
    if not gang.holds and len(gang.pending) == len(gang.pods):
        return 0  # it is on no node
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
        if made and snapshot.matcher.match(cls, bucket.node_class).serves(name):
            gain += made
    return gain


def _room_made(cls: PodClass, bucket: Bucket, leaving: Iterable[PodClass]) -> int:
    """For how many more pods of the class a node of the bucket has room once pods of these classes have left it."""
    after = dict(bucket.free)
    for taken in leaving:
        for resource, value in taken.request.items():
            after[resource] = after.get(resource, 0) + value
    most = 1 if cls.alone else sys.maxsize
    return min(times_fits(cls.request, after), most) - min(times_fits(cls.request, bucket.free), most)
