"""Decides which gangs may be preempted, what that costs, and whether the nodes a gang waits for are free."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.kube.objects.resources import plus
from muster.scheduler.draft import Draft
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.placements import is_leaving, is_open
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.gangs.slots import unusable
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.plan import Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import CORE
from muster.scheduler.preemption.eviction import Spending, by_eviction, may_go
from muster.scheduler.queue.backfill import began_at, occupants
from muster.scheduler.queue.lending import is_lent, outranks
from muster.scheduler.queue.overtaking import has_overtaken
from muster.scheduler.snapshot import Snapshot

RESTART_S = 60.0
"""Minimum cost of preempting a gang: the time to stop and to start again."""
_EVICT_WITHIN_S = 150.0
"""A gang whose evictions are refused for this long stays. A started eviction spends its budget for two minutes
(kubernetes pkg/controller/disruption, DeletionTimeout)."""


def may_leave(gang: Gang, bind_deadline_s: float) -> bool:
    """Return whether the gang can be preempted: it is fully bound, and one of these ways applies.

    - A TrainingJob's controller saves its work and deletes its pods.
    - A balloon has no work to save.
    - Other gangs are evicted.
    - A borrower that itself waits for victims gives up its plan, because it may reserve nodes that their owner needs.
    """
    placement = gang.placement
    if placement is not None and placement.spec.preempting and gang.borrows:
        return not any(member.node for member in gang.current.values())
    if gang.single:
        return placement is None and not gang.pending and (gang.traits.rank is Rank.BALLOON or by_eviction(gang))
    if placement is None or placement.spec.preempting or placement.status.phase != "Bound":
        return False
    if is_open(placement, bind_deadline_s):
        return False
    if gang.job is None:
        return gang.traits.rank is Rank.BALLOON or by_eviction(gang)
    return gang.traits.rank is Rank.BALLOON or not gang.ended


def is_stuck(gang: Gang, settings: Settings) -> bool:
    """Return whether the gang was bound, lost nodes, and cannot run until it has others."""
    placement = gang.placement
    if placement is None or gang.single or gang.blocker() is not None:
        return False
    if placement.spec.preempting or placement.status.phase != "Bound" or is_open(placement, settings.bind_deadline_s):
        return False
    return bool(gang.pending)


def continues_without(gang: Gang, lost: int) -> bool:
    """Return whether the gang continues if it gives up this many slots that have no spare node.

    It does if its job allows it, it was fully bound once, and the job's minimum of slots remains.
    """
    placement = gang.placement
    if gang.job is None or not gang.job.fewest or placement is None or placement.status.phase != "Bound":
        return False
    return gang.wanted - lost >= gang.job.fewest


def may_take(draft: Draft, gang: Gang, other: Gang, node: str = "") -> bool:
    """Return whether `gang` may preempt `other`, on this node if one is named.

    It may if it outranks `other`, if `other` was backfilled after it, or if `other` borrows the node from its team. If
    both lost nodes and wait for others, the later one yields, because otherwise neither would ever run.
    """
    if other.writing or other.binding or not may_go(draft.recalled.budget_needs, other, draft.now):
        return False
    comes_first = outranks(gang, other) or has_overtaken(gang, other) or is_lent(draft.snapshot, gang, other, node)
    if comes_first and may_leave(other, draft.settings.bind_deadline_s):
        return True
    broken = gang.placement is not None and any(member.node for member in gang.current.values())
    return broken and other.order > gang.order and is_stuck(other, draft.settings)


def leaves_by(gang: Gang, settings: Settings) -> float:
    """Return the deadline for live pods of a gang that was asked to leave, in seconds since the epoch.

    A job gets its grace period for a last checkpoint, then time for its ranks to end. Refused evictions are retried
    until the deadline. Other gangs get no grace, because they do not handle the request.
    """
    assert gang.placement is not None
    asked = gang.placement.status.preempting_time
    since = asked.timestamp() if asked is not None else 0.0
    if gang.job is not None:
        return since + 2 * gang.job.grace_s + settings.leave_slack_s
    return since + _EVICT_WITHIN_S if by_eviction(gang) else since


def is_overdue(gang: Gang, now: float, settings: Settings) -> bool:
    """Return whether a gang that was asked to leave is past its deadline, so that plans no longer count on it."""
    asked = gang.placement.status.preempting_time if gang.placement is not None else None
    return asked is not None and now >= asked.timestamp() + room_within_s([gang], settings)


def room_within_s(victims: Iterable[Gang], settings: Settings) -> float:
    """Return the time limit until the last pod of these gangs is confirmed gone."""
    within_s = 0.0
    for gang in victims:
        grace_s = max(gang.traits.grace_s, gang.job.grace_s if gang.job else 0.0)
        evicted_s = grace_s + _EVICT_WITHIN_S if by_eviction(gang) else 0.0
        within_s = max(within_s, 3 * grace_s + settings.leave_slack_s, evicted_s)
    return within_s + settings.leave_slack_s


def work_lost(gang: Gang, now: float) -> float:
    """Return the GPU-seconds of work lost by preemption: since the last checkpoint, else since the start.

    A gang that does not run loses nothing. A node without devices counts as one device. For evicted gangs neither
    checkpoints nor restarts of other members are known, so each member counts by itself.
    """
    if is_leaving(gang):
        return 0.0
    if by_eviction(gang):
        return sum(_lost_by(pod, now) for pod in gang.current.values() if pod.node)
    if gang.pending:
        return 0.0
    since = began_at(gang)
    if gang.job is not None:
        since = max(gang.job.saved_at or gang.job.started_at or since, 0.0)
    devices = sum(devices_of(cls) for cls in gang.slot_class.values())
    return devices * (max(0.0, now - since) + RESTART_S) if since else devices * RESTART_S


def _lost_by(pod: PodRecord, now: float) -> float:
    devices = devices_of(pod.cls) if pod.cls is not None else 1
    return devices * ((max(0.0, now - pod.bound_since) if pod.bound_since else 0.0) + RESTART_S)


def devices_of(cls: PodClass) -> int:
    """Return the number of devices of a pod; 1 if it requests none."""
    return max((value for resource, value in cls.request.items() if resource not in CORE), default=1)


class Vacating(msgspec.Struct, frozen=True):
    """State of the nodes on which a gang waits for victims to leave.

    Attributes:
        tell: gangs that still have to be asked to leave.
        remove: single pods to delete or evict.
        names: all that are still there.
        hopeless: a node will not become free: it is unusable, or a gang on it stays.
    """

    tell: tuple[Gang, ...]
    remove: tuple[Gang, ...]
    names: tuple[str, ...]
    hopeless: bool


def vacating(draft: Draft, gang: Gang) -> Vacating:
    """Check the nodes of all slots of the gang that need binding."""
    snapshot, matcher, notified = draft.snapshot, draft.recalled.matcher, draft.leaving
    tell: dict[str, Gang] = {}
    remove: dict[str, Gang] = {}
    names: dict[str, None] = {}
    hopeless = False
    for slot, member in gang.pending.items():
        placed = gang.placed.get(slot)
        if placed is None or unusable(snapshot, matcher, gang, slot, member, placed) is not None:
            hopeless = True
            continue
        node = snapshot.nodes[placed[0]]
        assert member.cls is not None
        if not _short(node.free(), member.cls):
            continue
        leaving, staying = _on(snapshot, node, gang)
        names.update(dict.fromkeys(leaving | staying))
        free = _given_back(snapshot, node, leaving, node.free())
        if not _short(free, member.cls):
            continue
        others = [snapshot.gangs[key] for key in staying]
        asked = [other for other in others if may_take(draft, gang, other, node.name)]
        asked.sort(key=lambda other: (other.traits.rank, other.priority, other.key))
        if _short(_given_back(snapshot, node, {other.key for other in asked}, free), member.cls):
            hopeless = hopeless or not any(snapshot.gangs[key].writing for key in staying)
            continue
        for other in reversed(asked.copy()):  # spare the most protected gangs if the others suffice
            fewer = {each.key for each in asked if each is not other}
            if not _short(_given_back(snapshot, node, fewer, free), member.cls):
                asked.remove(other)
        for other in asked:
            (remove if other.single and other.placement is None else tell)[other.key] = other
    asked = [other for other in (*tell.values(), *remove.values()) if other.key not in notified]
    if Spending(snapshot, draft.recalled.budget_needs, asked, notified).clash(frozenset(range(len(asked)))):
        return Vacating((), (), tuple(sorted(names)), hopeless=True)
    return Vacating(tuple(tell.values()), tuple(remove.values()), tuple(sorted(names)), hopeless)


def _short(free: dict[str, int], cls: PodClass) -> bool:
    """Return whether the node is overcommitted, including the gang's own slot."""
    return any(free.get(resource, -1) < 0 for resource in cls.request)


def _on(snapshot: Snapshot, node: NodeRecord, gang: Gang) -> tuple[set[str], set[str]]:
    """Return the other gangs on the node: those whose pods there are terminating, and the rest."""
    others = occupants(snapshot, node) - {gang.key}
    leaving = {key for key in others if is_leaving(snapshot.gangs[key]) or _ends(snapshot.gangs[key], node)}
    return leaving, others - leaving


def _ends(gang: Gang, node: NodeRecord) -> bool:
    """Return whether all pods of the gang on the node are being deleted."""
    if any(held == node.name for held, _ in gang.holds.values()):
        return False
    return all(pod.terminating for pod in gang.pods.values() if pod.counted_on == node.name)


def _given_back(snapshot: Snapshot, node: NodeRecord, keys: Iterable[str], free: dict[str, int]) -> dict[str, int]:
    """Return what is free on the node once those gangs have left it."""
    wanted = set(keys)
    for uid in node.pods:
        pod = snapshot.pods.get(uid)
        if pod is not None and pod.gang in wanted and pod.cls is not None:
            free = plus(free, pod.cls.request)
    for (key, _), cls in node.holds.items():
        if key in wanted and cls is not None:
            free = plus(free, cls.request)
    return free
