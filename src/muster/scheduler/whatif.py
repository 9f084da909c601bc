"""What would change if: nodes more, gangs gone, a constraint dropped. Nothing here touches the snapshot."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

from muster.kube.affinity import Toleration
from muster.scheduler.gangs import Gang
from muster.scheduler.ledger import Ledger, fits
from muster.scheduler.matching import Matcher
from muster.scheduler.nodes import Bucket, BucketKey
from muster.scheduler.placing import candidates
from muster.scheduler.podclass import PodClass
from muster.scheduler.reasons import NodeWhy
from muster.scheduler.resources import times_fits
from muster.scheduler.snapshot import Snapshot


class WhatIf(msgspec.Struct, frozen=True):
    """A supposition: so many nodes more of a kind the pods can use, and these gangs (`namespace/name`) gone."""

    add_nodes: int = 0
    without_gangs: tuple[str, ...] = ()


class ChangeKind(StrEnum):
    """What could be done."""

    CREATE_PODS = "CreatePods"
    DROP_SELECTOR = "DropSelector"
    TOLERATE = "Tolerate"
    UNCORDON = "Uncordon"
    NODES_READY = "NodesReady"
    GANG_ENDS = "GangEnds"
    ADD_NODES = "AddNodes"


class Change(msgspec.Struct, frozen=True):
    """A change that would admit the gang."""

    kind: ChangeKind
    count: int = 0
    detail: str = ""

    def text(self) -> str:
        """Say it in a few words."""
        nodes = f"{self.count} node{'s' if self.count != 1 else ''}"
        return {
            ChangeKind.CREATE_PODS: f"{self.count} more pods",
            ChangeKind.DROP_SELECTOR: f"remove nodeSelector {self.detail}",
            ChangeKind.TOLERATE: f"tolerate taint {self.detail}",
            ChangeKind.UNCORDON: f"uncordon {nodes}",
            ChangeKind.NODES_READY: f"{nodes} become ready",
            ChangeKind.GANG_ENDS: f"{self.detail} ends",
            ChangeKind.ADD_NODES: f"+{nodes}",
        }[self.kind]


def supposed(snapshot: Snapshot, cls: PodClass, what_if: WhatIf) -> Ledger:
    """Return the nodes' room as it would be."""
    base: dict[BucketKey, Bucket] = dict(snapshot.buckets)
    like = _best_kind(snapshot, cls)
    if what_if.add_nodes and like is not None:
        key = (like.node_class.number, (("what-if", 1),), frozenset[tuple[str, str, int]]())
        names = dict.fromkeys(f"(new node {number})" for number in range(what_if.add_nodes))
        base[key] = Bucket(key, like.node_class, like.free, frozenset(), names)
    ledger = Ledger(base)
    for gang in snapshot.gangs.values():
        if gang.full_name in what_if.without_gangs:
            for name, taken in _taken_by(gang):
                bucket = ledger.room(snapshot.nodes[name])
                if bucket is not None:
                    ledger.give(bucket, name, taken)
    return ledger


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
    for why, kind in ((NodeWhy.UNSCHEDULABLE, ChangeKind.UNCORDON), (NodeWhy.NOT_READY, ChangeKind.NODES_READY)):
        needed = _nodes_needed(_blocked_only_by(snapshot, cls, why, beside), missing)
        if needed:
            found.append(Change(kind, needed))
    found += _gangs_ending(snapshot, gang, cls, missing, beside)
    like = _best_kind(snapshot, cls)
    if like is not None:
        found.append(Change(ChangeKind.ADD_NODES, -(-missing // fits(cls, like))))
    return tuple(found)


def _best_kind(snapshot: Snapshot, cls: PodClass) -> Bucket | None:
    """The empty form of the node that takes most pods of the class."""
    serving = [
        bucket
        for bucket in snapshot.empty_buckets.values()
        if snapshot.matcher.match(cls, bucket.node_class).reason is None and fits(cls, bucket)
    ]
    return max(serving, key=lambda bucket: (fits(cls, bucket), -bucket.node_class.number), default=None)


def _dropped_constraints(snapshot: Snapshot, cls: PodClass, need: int, beside: Collection[str]) -> Iterable[Change]:
    """Constraints of which dropping one alone is enough."""
    ledger = Ledger(snapshot.buckets)
    for key, value in cls.selector.items():
        selector = {other: wanted for other, wanted in cls.selector.items() if other != key}
        if room(ledger, Matcher(), dataclasses.replace(cls, selector=selector), beside) >= need:
            yield Change(ChangeKind.DROP_SELECTOR, detail=f"{key}={value}")
    taints = {taint for bucket in snapshot.buckets.values() for taint in _hard_taints(bucket)}
    for key, effect in sorted(taints):
        more = (*cls.tolerations, Toleration(key=key, operator="Exists", effect=effect))
        if room(ledger, Matcher(), dataclasses.replace(cls, tolerations=more), beside) >= need:
            yield Change(ChangeKind.TOLERATE, detail=f"{key}:{effect}")


def _hard_taints(bucket: Bucket) -> list[tuple[str, str]]:
    return [(taint.key, taint.effect) for taint in bucket.node_class.taints if taint.effect != "PreferNoSchedule"]


def _blocked_only_by(snapshot: Snapshot, cls: PodClass, why: NodeWhy, beside: Collection[str]) -> list[int]:
    """How many pods each node would take that serves but for being cordoned or not ready."""
    times = []
    matcher = Matcher()
    for bucket in snapshot.buckets.values():
        reason = snapshot.matcher.match(cls, bucket.node_class).reason
        if reason is None or reason.why is not why:
            continue
        better = dataclasses.replace(bucket.node_class, unschedulable=False, problem="")
        match = matcher.match(cls, better)
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
    for other in snapshot.gangs.values():
        if other is not gang:
            gain = _gain(snapshot, other, cls, beside)
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


def _gain(snapshot: Snapshot, gang: Gang, cls: PodClass, beside: Collection[str]) -> int:
    """For how many more pods of the class there would be room without the gang."""
    freed: dict[str, dict[str, int]] = {}
    for name, taken in _taken_by(gang):
        node = snapshot.nodes[name]
        if node.node_class is None or name in beside or not snapshot.matcher.match(cls, node.node_class).serves(name):
            continue
        room_left = freed.setdefault(name, node.free())
        for resource, value in taken.request.items():
            room_left[resource] = room_left.get(resource, 0) + value
    most = 1 if cls.alone else sys.maxsize
    return sum(
        min(times_fits(cls.request, after), most) - min(times_fits(cls.request, snapshot.nodes[name].free()), most)
        for name, after in freed.items()
    )


def _taken_by(gang: Gang) -> list[tuple[str, PodClass]]:
    """(node, class) of each pod and held slot of the gang."""
    pods = [(pod.counted_on, pod.cls) for pod in gang.pods.values() if pod.counted_on and pod.cls is not None]
    return pods + [(node, cls) for node, cls in gang.holds.values() if cls is not None]
