"""Reviews the slots of an existing placement: which keep their node, wait, or need another node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from muster.api.words import few
from muster.kube.objects.resources import plus
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.rules import intruded
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import WHOLE, short_of
from muster.scheduler.reasons import NodeReason, NodeWhy, Reason, Why
from muster.scheduler.snapshot import Snapshot

_NO_REASON_TO_MOVE = frozenset({NodeWhy.CHANGES_HANDS, NodeWhy.TESTED_TOO_LONG_AGO})
"""Reasons that exclude a node for new pods, but not for slots that were placed on it earlier."""
_SERVES_OTHERS = frozenset({NodeWhy.OTHER_TEAM, NodeWhy.SELECTOR, NodeWhy.AFFINITY})
"""Reasons why a node rejects a slot but may accept another gang: it got an owner or other labels."""


@dataclass(slots=True)
class SlotReview:
    """The slots of a placed gang whose pods have no node yet.

    Attributes:
        keep: slot -> node: the pod can be bound there now.
        wait: slot -> pod of an earlier attempt that still takes the room on the slot's node.
        replace: slot -> why its node is not usable any more.
        unsettled: slots on nodes for which a preempting gang's plan is still being written; they may have to leave.
    """

    keep: dict[int, str] = field(default_factory=dict)
    wait: dict[int, str] = field(default_factory=dict)
    replace: dict[int, NodeReason] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)


def review(snapshot: Snapshot, matcher: Matcher, ledger: Ledger, gang: Gang) -> SlotReview:
    """Review every slot that has a pending pod."""
    result = SlotReview()
    for slot, member in sorted(gang.pending.items()):
        placed = gang.placed.get(slot)
        if placed is None:
            result.replace[slot] = NodeReason(NodeWhy.GONE, "never placed")
            continue
        reason = unusable(snapshot, matcher, gang, slot, member, placed) or _intruded(
            ledger, gang, slot, member, placed[0]
        )
        if reason is None:
            node = snapshot.nodes[placed[0]]
            busy = _room_for(snapshot, ledger, gang, slot, member, node)
            if busy is None and _is_unsettled(snapshot, gang, node):
                result.unsettled.add(slot)
            elif busy is None:
                result.keep[slot] = node.name
            elif isinstance(busy, str):
                result.wait[slot] = busy
            else:
                reason = busy
        if reason is not None:
            result.replace[slot] = reason
    return result


def never_ran(gang: Gang) -> bool:
    """Return whether the gang has a placement, but no pod was ever bound by it."""
    return gang.placement is not None and gang.placement.status.bound_time is None and runs_nowhere(gang)


def gives_back(gang: Gang, looked: SlotReview) -> bool:
    """Return whether a gang without other nodes for its slots gives its placement up, so that others use the nodes.

    A gang that was fully bound before keeps its slots through a restart. The exception is a node that is now usable
    for other gangs but not for this one.
    """
    if never_ran(gang):
        return True
    return runs_nowhere(gang) and any(reason.why in _SERVES_OTHERS for reason in looked.replace.values())


def runs_nowhere(gang: Gang) -> bool:
    """Return whether the gang has neither a bound pod nor a bind in flight."""
    return not gang.binding and not any(pod.counted_on for pod in gang.pods.values())


def unusable(
    snapshot: Snapshot, matcher: Matcher, gang: Gang, slot: int, member: PodRecord, placed: tuple[str, str]
) -> NodeReason | None:
    """Return why the slot's node is not usable any more, apart from room on it; None if it is usable."""
    name, uid = placed
    node = snapshot.nodes.get(name)
    if node is None or node.node_class is None:
        return NodeReason(NodeWhy.GONE, name)
    if uid and node.uid != uid:
        return NodeReason(NodeWhy.REPLACED, name)
    if (slot, name) in gang.failed_nodes:
        return NodeReason(NodeWhy.BIND_FAILED, name)
    assert member.cls is not None
    match = matcher.match(member.cls, node.node_class)
    if match.reason is not None and match.reason.why not in _NO_REASON_TO_MOVE:
        return match.reason
    return None if match.admits(name) else NodeReason(NodeWhy.EXCLUDED, name)


def _intruded(ledger: Ledger, gang: Gang, slot: int, member: PodRecord, name: str) -> NodeReason | None:
    """Return the anti-affinity rule that pods break which came after the slot was placed; None if there is none."""
    assert member.cls is not None
    if not member.cls.subjects:
        return None
    counted = [(pod.counted_on, pod.cls) for pod in gang.members_by_slot.get(slot, {}).values() if pod.counted_on]
    own = [(node, cls) for node, cls in [*counted, gang.holds.get(slot, ("", None))] if cls is not None]
    return intruded(member.cls, ledger.layer, name, own)


def _room_for(
    snapshot: Snapshot, ledger: Ledger, gang: Gang, slot: int, member: PodRecord, node: NodeRecord
) -> str | NodeReason | None:
    """Return None if there is room now, the pod that must go first, or the reason why the room is taken."""
    assert member.cls is not None
    bucket = ledger.room(node)
    if bucket is None:
        return NodeReason(NodeWhy.GONE, node.name)
    held = gang.holds.get(slot, ("", None))
    ours = held[0] == node.name
    if (
        ours
        and held[1] is member.cls
        and not member.cls.ports
        and not node.fully_held
        and min(bucket.free.values()) >= 0
    ):
        return None  # fast path for the usual case: its reservation suffices, and the node is not overcommitted
    if (node.fully_held and not ours) or (node.fully_held > 1 and held[1] is None):
        return NodeReason(NodeWhy.IN_USE, "another gang's slot")  # if this slot is reserved too, both had room earlier
    if node.fully_held:
        bucket = Bucket(bucket.key, bucket.node_class, node.free_without_holds(), bucket.ports)
    if ours and held[1] is not None:
        bucket = _with(
            bucket, [held[1], *_planned_by_others(snapshot, gang, node), *_counted_twice(snapshot, gang, node)]
        )
    if fits(member.cls, bucket):
        return None
    old = [
        pod
        for pod in gang.members_by_slot.get(slot, {}).values()
        if pod is not member and pod.counted_on == node.name and pod.cls is not None
    ]
    if old and fits(member.cls, _with(bucket, [pod.cls for pod in old if pod.cls is not None])):
        return old[0].name
    if ours:
        later = _promised_twice(snapshot, gang, node)
        if later and fits(member.cls, _with(bucket, later)):
            return None
    missing = short_of(member.cls.request, bucket.free)
    return NodeReason(NodeWhy.IN_USE, ", ".join(what for what in missing if what != WHOLE) or _holds_node(member.cls))


def _holds_node(cls: PodClass) -> str:
    """Return why the pod does not fit although the node has enough of every resource."""
    return "host port" if cls.ports else "another job on the node"


def _planned_by_others(snapshot: Snapshot, gang: Gang, node: NodeRecord) -> list[PodClass]:
    """Return the classes of pods that preempting gangs will place on the node, if this gang is one of their victims."""
    return [cls for other, cls in _plans_on(snapshot, gang, node) if cls is not None]


def _counted_twice(snapshot: Snapshot, gang: Gang, node: NodeRecord) -> list[PodClass]:
    """Return the room that other gangs give up on the node and that their pods still use.

    Until the write that gives the room up has ended, it is reserved beside the pod, in case the pod ends earlier.
    """
    found = []
    for (key, slot), cls in node.holds.items():
        other = snapshot.gangs.get(key)
        if cls is None or other is None or other is gang or not other.writing:
            continue
        if other.holds.get(slot, ("",))[0] != node.name and any(
            pod.counted_on == node.name for pod in other.members_by_slot.get(slot, {}).values()
        ):
            found.append(cls)
    return found


def _is_unsettled(snapshot: Snapshot, gang: Gang, node: NodeRecord) -> bool:
    """Return whether a preempting gang's plan for this node is still being written; victims are asked afterwards."""
    written = all(not other.writing for other, _ in _plans_on(snapshot, gang, node))
    return not written and any(left < 0 for left in node.free().values())


def _plans_on(snapshot: Snapshot, gang: Gang, node: NodeRecord) -> Iterator[tuple[Gang, PodClass | None]]:
    """Yield the preempting gangs on the node, and the classes of their slots; none for a gang that is one."""
    if _preempts(gang):
        return
    for (key, _), cls in node.holds.items():
        other = snapshot.gangs.get(key)
        if other is not None and other is not gang and _preempts(other):
            yield other, cls


def _preempts(gang: Gang) -> bool:
    return gang.placement is not None and gang.placement.spec.preempting


def _promised_twice(snapshot: Snapshot, gang: Gang, node: NodeRecord) -> list[PodClass]:
    """Return the room that later gangs reserve on the node in addition to this gang.

    To avoid a deadlock, their slots move.

    If a pod of a later gang already uses the room, it keeps the room.
    """
    found = []
    for (key, slot), cls in node.holds.items():
        other = snapshot.gangs.get(key)
        if cls is None or other is None or other is gang or other.writing or other.order < gang.order:
            continue
        if other.holds.get(slot) == (node.name, cls):
            found.append(cls)
    return found


def _with(bucket: Bucket, classes: list[PodClass]) -> Bucket:
    """Return the bucket with the room of those pods added."""
    free, ports = bucket.free, bucket.ports
    for cls in classes:
        free = plus(free, cls.request)
        ports = ports - frozenset(cls.ports)
    return Bucket(bucket.key, bucket.node_class, free, ports)


def old_pods(looked: SlotReview) -> Reason:
    """Return the reason for a gang whose slots wait for pods of an earlier attempt."""
    return Reason(Why.WAITING_FOR_OLD_POD, len(looked.wait), detail=few(looked.wait.values()))
