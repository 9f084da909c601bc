"""The first half of a plan: decides about gangs that have a placement, until they are bound or released."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.words import counted, few
from muster.scheduler.draft import Draft, ask_to_leave, report_blocker, waits, wake, write
from muster.scheduler.gangs.gang import Gang, PodRecord, seconds
from muster.scheduler.gangs.placements import is_leaving, is_open, started_at
from muster.scheduler.gangs.slots import SlotReview, never_ran, old_pods, review
from muster.scheduler.plan import Bind, DeletePlacement, MarkBound, ReleaseGang, RemoveMember, StayOn
from muster.scheduler.preemption.eviction import by_eviction, evict, is_tried, to_evict, try_eviction
from muster.scheduler.preemption.victims import Vacating, leaves_by, vacating
from muster.scheduler.queue.lending import lent_nodes, outranks
from muster.scheduler.queue.overtaking import has_overtaken
from muster.scheduler.reasons import Reason, Why

PREEMPTED = "PreemptionByScheduler"
"""Condition reason, as kube-scheduler writes it (Kubernetes: pod disruption conditions)."""


def carry_on(draft: Draft, gang: Gang) -> None:
    """Plan the next actions for a gang with a placement.

    If it needs other nodes, these are found in queue order later.
    """
    placement = gang.placement
    if gang.writing or gang.key in draft.leaving:
        return
    if placement is None:
        if gang.lost_its_placement and not gang.binding:
            write(draft, gang, {}, reason="its placement was deleted", without=gang.ran_without)
        return
    if placement.status.phase == "Released":
        _release(draft, gang)
    elif is_leaving(gang):
        _leave(draft, gang)
    elif not gang.current:
        _podless(draft, gang)
    elif placement.spec.preempting:
        _await_room(draft, gang)
    elif is_open(placement, draft.settings.bind_deadline_s):
        _finish_open(draft, gang)
    elif gang.pending:
        _restart(draft, gang)
    elif gang.surplus:
        write(draft, gang, {}, reason="it has fewer members", without=gang.surplus)


def _release(draft: Draft, gang: Gang) -> None:
    """Remove the bound members, and then the placement. After that the gang may be placed again."""
    assert gang.placement is not None
    bound = [member for _, member in sorted(gang.current.items()) if member.node]
    for member in bound:
        text = "the gang was not bound as a whole in time"
        draft.actions.append(RemoveMember(gang.key, member.namespace, member.name, member.uid, text))
    if bound:
        draft.waiting[gang.key] = Reason(Why.RELEASING)
        wake(draft, draft.now + 1.0)  # a removal that failed is tried again
    elif not gang.binding:
        draft.actions.append(DeletePlacement(gang.key, gang.placement, "released"))


def _leave(draft: Draft, gang: Gang) -> None:
    """Delete the placement when the last pod is confirmed gone. The gang's controller deletes the pods.

    After the deadline the scheduler deletes the remaining pods.
    """
    placement = gang.placement
    assert placement is not None
    there = [pod for pod in gang.pods.values() if pod.counted_on]
    if not there:
        if not gang.binding:
            draft.actions.append(DeletePlacement(gang.key, placement, placement.status.message))
        return
    waits(draft, gang, Reason(Why.LEAVING, detail=placement.status.message))
    deadline = leaves_by(gang, draft.settings)
    if by_eviction(gang):
        _drain(draft, gang, deadline)
        return
    if draft.now < deadline:
        wake(draft, deadline)
        return
    for pod in sorted(there, key=lambda pod: pod.name):
        if not pod.terminating:
            _remove(draft, gang, pod, placement.status.message)
    wake(draft, draft.now + 1.0)


def _drain(draft: Draft, gang: Gang, deadline: float) -> None:
    """Evict the gang's remaining pods. If evictions are refused until the deadline, the gang stays and is repaired."""
    assert gang.placement is not None
    left = to_evict(gang)
    if left and draft.now >= deadline and all(pod.error for pod in left):
        text = f"{len(left)} of its pods could not be evicted in time; {left[0].name}: {left[0].error}"
        draft.actions.append(StayOn(gang.key, gang.placement, text))
        return
    _evict(draft, left, gang.placement.status.message)
    if left:
        wake(draft, max(deadline, draft.now + 1.0))


def _evict(draft: Draft, pods: Iterable[PodRecord], text: str) -> None:
    for pod in pods:
        if pod.retry_at > draft.now:
            wake(draft, pod.retry_at)
        else:
            draft.actions.append(evict(pod, text))


def _remove(draft: Draft, gang: Gang, pod: PodRecord, text: str) -> None:
    draft.actions.append(RemoveMember(gang.key, pod.namespace, pod.name, pod.uid, text, PREEMPTED))


def _await_room(draft: Draft, gang: Gang) -> None:
    """Wait until victims leave the gang's nodes. Bind it when all nodes are free, else plan it again."""
    placement = gang.placement
    assert placement is not None
    blocker = gang.blocker()
    if blocker is not None:
        waits(draft, gang, blocker)
    look = vacating(draft, gang)
    if blocker is None and not look.names and not look.hopeless:
        write(draft, gang, {}, reason="the nodes are free")
        return
    deadline = seconds(placement.spec.bind_deadline)
    if look.hopeless or draft.now >= deadline:
        if not any(member.node for member in gang.current.values()):
            draft.actions.append(DeletePlacement(gang.key, placement, "its nodes did not become free"))
        elif blocker is None:
            draft.repairs.append((gang, review(draft.snapshot, draft.recalled.matcher, draft.ledger, gang), False))
        return
    wake(draft, deadline)
    untried = [other for other in (*look.tell, *look.remove) if not is_tried(other, draft.now)]
    for other in untried:
        draft.actions.append(try_eviction(other, gang))
    if not untried:  # preempt only after dry runs have shown that all victims may be evicted
        _have_leave(draft, gang, look)
    if blocker is None:
        names = few([draft.snapshot.gangs[key].full_name for key in look.names])
        waits(draft, gang, Reason(Why.MAKING_ROOM, len(gang.pending), detail=names))


def _have_leave(draft: Draft, gang: Gang, look: Vacating) -> None:
    for other in look.tell:
        if outranks(gang, other) or lent_nodes(draft.snapshot, gang, other):
            ask_to_leave(draft, other, "Preempted", _preempted(draft, gang, other))
        elif has_overtaken(gang, other):
            ask_to_leave(draft, other, "Backfilled", _given_back(gang))
        else:
            text = f"yields to {gang.full_name}, which is earlier and lost nodes too, as no spare node is there"
            ask_to_leave(draft, other, "Yielded", text)
    for other in look.remove:
        text = _given_back(gang) if has_overtaken(gang, other) else _preempted(draft, gang, other)
        draft.leaving.add(other.key)
        if by_eviction(other):
            _evict(draft, to_evict(other), text)
            continue
        for pod in other.pods.values():
            if pod.live:
                _remove(draft, other, pod, text)


def _given_back(gang: Gang) -> str:
    return f"gives back nodes on which it was backfilled: {gang.full_name}, which is before it in the queue, can start"


def _preempted(draft: Draft, gang: Gang, other: Gang) -> str:
    lent = lent_nodes(draft.snapshot, gang, other)
    if lent:
        return f"gives {counted(lent, 'node')} back to team {gang.team}: {gang.full_name} needs them"
    return f"preempted by {gang.full_name} (priority {gang.priority})"


def _podless(draft: Draft, gang: Gang) -> None:
    """Reserve slots for pods to come, until they cannot come or the hold expires."""
    assert gang.placement is not None
    since = gang.podless_since if gang.podless_since is not None else draft.now
    reason = ""
    if gang.single:
        reason = "the pod is gone"
    elif gang.ended:
        reason = f"the job is {gang.ended}"
    elif gang.owner_missing:
        reason = "the job is gone"
    elif len(draft.snapshot.gangs_by_name.get(gang.full_name, ())) > 1:
        reason = "another job has taken the name"
    elif draft.now >= since + draft.settings.hold_s:
        reason = f"no pod for {draft.settings.hold_s:.0f} s"
    if reason:
        draft.actions.append(DeletePlacement(gang.key, gang.placement, reason))
    else:
        wake(draft, since + draft.settings.hold_s)


def _finish_open(draft: Draft, gang: Gang) -> None:
    assert gang.placement is not None
    deadline = seconds(gang.placement.spec.bind_deadline)
    if gang.revision_since is not None:  # the clock of the scheduler that wrote it may be ahead of this one
        deadline = min(deadline, gang.revision_since + draft.settings.bind_deadline_s)
    if gang.complete and not gang.pending:
        if any(member.node != gang.placed.get(slot, ("",))[0] for slot, member in gang.current.items()):
            write(draft, gang, {}, keep_deadline=True, reason="bound by another scheduler")
        elif gang.single:
            draft.actions.append(DeletePlacement(gang.key, gang.placement, "the pod is bound"))
        else:
            draft.actions.append(MarkBound(gang.key, gang.placement))
        return
    if draft.now >= deadline:
        _overdue(draft, gang)
        return
    wake(draft, deadline)
    if len(gang.pending) == gang.binding:
        waits(draft, gang, Reason(Why.BINDING, len(gang.current), len(gang.current) - len(gang.pending)))
        return
    blocker = gang.blocker()
    if blocker is not None:
        waits(draft, gang, blocker)
        return
    looked = review(draft.snapshot, draft.recalled.matcher, draft.ledger, gang)
    if looked.replace:
        if not gang.binding and not _give_up(draft, gang, looked, keep_deadline=True):
            draft.repairs.append((gang, looked, True))
        return
    for slot, node in looked.keep.items():
        member = gang.pending[slot]
        if member.binding:
            continue
        if member.retry_at > draft.now:
            wake(draft, member.retry_at)
            continue
        draft.actions.append(Bind(gang.key, member.namespace, member.name, member.uid, node, slot))
    if looked.wait:
        waits(draft, gang, old_pods(looked))
    else:
        waits(draft, gang, Reason(Why.BINDING, len(gang.current), len(gang.current) - len(gang.pending)))


def _overdue(draft: Draft, gang: Gang) -> None:
    """Release a gang that missed its bind deadline, or plan it again if it need not be released.

    It need not be released in two cases:

    - nothing is bound and no bind was refused (the leader was away);
    - members that were bound before this revision still run.
    """
    placement = gang.placement
    assert placement is not None
    if gang.binding:
        return  # binds are in flight; their own deadlines are shorter
    # The API server records binds in whole seconds. So a bind in the second of the start belongs to this revision.
    start = int(started_at(placement, draft.settings.bind_deadline_s).timestamp())
    survivors = any(member.node and 0 < member.bound_since < start for member in gang.current.values())
    errors = sorted({member.error for member in gang.pending.values() if member.error})
    bound = len(gang.current) - len(gang.pending)
    if gang.blocker() is not None and never_ran(gang):  # its other pods may never come
        report_blocker(draft, gang)
        draft.actions.append(DeletePlacement(gang.key, placement, "it was not bound in time"))
        return
    if survivors or not (bound or errors):
        _restart(draft, gang)
        return
    detail = f": {errors[0]}" if errors else ""
    text = f"{bound} of {len(gang.current)} pods were bound within {draft.settings.bind_deadline_s:.0f} s{detail}"
    draft.actions.append(ReleaseGang(gang.key, placement, text))


def _restart(draft: Draft, gang: Gang) -> None:
    """Plan again once all recreated members exist."""
    if gang.blocker() is not None:
        report_blocker(draft, gang)
        return
    looked = review(draft.snapshot, draft.recalled.matcher, draft.ledger, gang)
    if not _give_up(draft, gang, looked, keep_deadline=False):
        draft.repairs.append((gang, looked, False))


def _give_up(draft: Draft, gang: Gang, looked: SlotReview, *, keep_deadline: bool) -> bool:
    """Drop members beyond the minimum whose nodes are unusable. They rejoin if there is room, and delay no gang."""
    extras = gang.extras(looked.replace) & gang.placed.keys()
    if extras:
        reason = "without members beyond its minimum"
        write(draft, gang, {}, reason=reason, keep_deadline=keep_deadline, without=extras)
    return bool(extras)
