"""Decides what the scheduler does now. Pure: the same snapshot and time give the same plan.

The rules, in the order in which they apply:

- Existing placements go first: each is bound as a whole by its deadline, or released.
- Gangs get nodes by priority, then arrival, each as a whole or not at all.
- A gang with a placement keeps its slots. Only slots whose node is no longer usable are placed again, all together.
  If it has no pods on its nodes, and other gangs could use these nodes, it returns to the queue.
- The first waiting gang reserves every node it could use. Gangs behind it may use these nodes only if they already
  hold nodes, if their time limit ends them before it starts, or as queue/reservations.py says.
- When the first waiting gang fits without backfilled gangs, these are asked to leave (queue/overtaking.py).
- A gang that would not fit into the empty cluster reserves nothing. Otherwise it would block the queue for ever.
- Gangs of lower priority are preempted for a gang that does not fit, if it then fits.
- A gang that lost nodes and finds no spare continues with fewer if its job allows that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

from muster.api.placement import Backfill
from muster.api.words import few
from muster.scheduler.draft import Draft, ask_to_leave, report_blocker, room_for, waits, wake, write
from muster.scheduler.gangs.gang import Gang, Order
from muster.scheduler.gangs.placed import carry_on
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.gangs.slots import SlotReview, gives_back, old_pods, runs_nowhere
from muster.scheduler.memo import EMPTY, Memo, recall, remember
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.place import Groups, Shortage
from muster.scheduler.plan import Bind, DeletePlacement, Plan, Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.preemption.eviction import is_tried, try_eviction
from muster.scheduler.preemption.make_room import MadeRoom, make_room
from muster.scheduler.preemption.moving import movers
from muster.scheduler.preemption.stopping import fits_once_stopped
from muster.scheduler.preemption.victims import continues_without, is_stuck, may_take, room_within_s
from muster.scheduler.queue.backfill import START_SLACK_S, Start, start_of, would_end_at
from muster.scheduler.queue.backfill_records import update_records
from muster.scheduler.queue.demand import demands
from muster.scheduler.queue.late_members import as_many_as_fit, room_for_joiners
from muster.scheduler.queue.overtaking import backfill_order, has_overtaken, overtakers, rests_until
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Queue, Snapshot

DEFAULTS = Settings()
_REPORTED_PER_QUEUE = 20
"""Maximum number of gangs behind the head of a queue that a plan lists. It only counts the others."""
_BACKFILL_DEPTH = 50
"""Maximum number of gangs in each queue that a plan tries to backfill."""
_Turn = tuple[Queue, int] | tuple[Gang, SlotReview, bool]


def decide(snapshot: Snapshot, now: float, settings: Settings = DEFAULTS, memo: Memo = EMPTY) -> Plan:
    """Return the plan for this snapshot. `now` is in seconds since the epoch.

    `memo` comes from an earlier plan. It saves work and does not change the result.
    """
    draft = Draft(snapshot, now, settings, recall(snapshot, now, memo))
    free = [gang for gang in snapshot.attention.values() if not gang.writing]
    for gang in sorted(free, key=lambda gang: gang.order):
        carry_on(draft, gang)
    _place_in_order(draft)
    _make_room_in_order(draft)
    _let_join(draft)
    update_records(draft)
    for gang in snapshot.waiting.values():
        report_blocker(draft, gang)
    return Plan(
        tuple(draft.actions),
        draft.waiting,
        draft.unreported,
        draft.wake_at,
        draft.starts,
        tuple(demands(snapshot, draft.waiting)),
        draft.searches,
        tuple(draft.delayed),
        remember(snapshot, draft.recalled),
    )


def _place_in_order(draft: Draft) -> None:
    """Place all gangs and repairs that need nodes, by priority and arrival."""
    turns: list[tuple[Order, int, _Turn]] = []
    queues = list(draft.snapshot.queues.values())
    for index, queue in enumerate(queues):
        turns.append((queue[0].order, index, (queue, 0)))
    for index, repair in enumerate(draft.repairs, start=len(queues)):
        turns.append((repair[0].order, index, repair))
    heapq.heapify(turns)
    while turns:
        _, index, turn = heapq.heappop(turns)
        if len(turn) == 3:
            _repair(draft, *turn)
            continue
        queue, at = turn
        placed = _place(draft, queue[at])
        while placed and not turns and at + 1 < len(queue):  # with one queue left, no order has to be compared
            at += 1
            placed = _place(draft, queue[at])
        if not placed:
            _behind(draft, queue, at)
        elif at + 1 < len(queue):
            heapq.heappush(turns, (queue[at + 1].order, index, (queue, at + 1)))


def _place(draft: Draft, gang: Gang) -> bool:
    """Place a gang that has no placement. Return whether the next gang in its queue may be tried."""
    if gang.writing or gang.binding:
        return True
    if _name_taken(draft, gang):
        waits(draft, gang, Reason(Why.OLD_PLACEMENT))
        return True
    groups = _groups(gang, gang.pending)
    closed = draft.kept.closed_to(would_end_at(gang, draft.now))
    chosen = _choose(draft, gang, groups, closed)
    if isinstance(chosen, Shortage):
        if draft.kept and (_give_left_over(draft, gang, groups) or _give_until_needed(draft, gang, groups)):
            return True
        return _short(draft, gang, groups, chosen, closed)
    _give(draft, gang, chosen)
    return True


def _give_left_over(draft: Draft, gang: Gang, groups: Groups) -> bool:
    """Start a gang on reserved nodes that the gangs before it cannot use now and are not expected to get first."""
    if not draft.snapshot.run_times.records:
        return False
    chosen = _choose(draft, gang, groups, draft.kept.closed_to_all())
    if isinstance(chosen, Shortage):
        return False
    _give(draft, gang, chosen)
    return True


def _give_until_needed(draft: Draft, gang: Gang, groups: Groups) -> bool:
    """Backfill a gang: start it on nodes that are reserved for gangs before it, until these can start."""
    closed = _closed_to_backfilled(draft, gang)
    if closed is None:
        return False
    chosen = _choose(draft, gang, groups, closed)
    if isinstance(chosen, Shortage):
        return False
    first = draft.kept.first_on(chosen.values())
    _give(draft, gang, chosen, _backfill_for(first, draft.settings) if first is not None else None)
    return True


def _closed_to_backfilled(draft: Draft, gang: Gang) -> Closed | None:
    """Return the nodes that are closed to the gang if it is backfilled; None if it may not be backfilled."""
    if gang.restartable:
        return draft.kept.closed_to_restartable()
    run_s = draft.recalled.expected.run_s(gang) if gang.requeueable else inf
    return draft.kept.closed_to_expected(run_s + START_SLACK_S) if run_s < inf else None


def _backfill_for(first: Gang, settings: Settings) -> Backfill:
    return Backfill(
        gang=first.full_name,
        gang_uid=first.uid,
        min_run_seconds=settings.backfill_min_run_s,
        delay_seconds=settings.backfill_delay_s,
    )


def _give(draft: Draft, gang: Gang, chosen: Mapping[int, str], backfill: Backfill | None = None) -> None:
    """Write the first plan of a gang, or bind a single pod, which needs no Placement.

    `backfill`: the gang for which these nodes are reserved.
    """
    if gang.single:
        member = gang.pending[0]
        if member.retry_at > draft.now:
            wake(draft, member.retry_at)
        else:
            reserved_for = backfill.gang if backfill is not None else ""
            bind = Bind(gang.key, member.namespace, member.name, member.uid, chosen[0], backfilled_for=reserved_for)
            draft.actions.append(bind)
        return
    write(draft, gang, chosen, keep_deadline=False, reason="", backfill=backfill)


def _choose(draft: Draft, gang: Gang, groups: Groups, closed: Closed = OPEN) -> dict[int, str] | Shortage:
    slots = {slot for slots in groups.values() for slot in slots}
    return draft.recalled.refusals.choose(
        gang.key,
        draft.ledger,
        groups,
        closed=closed,
        failed=gang.failed_nodes,
        taken=gang.nodes_beside(slots),
        given_up=[held for slot, held in gang.holds.items() if slot in slots],
        nearest=draft.recalled.expected.nearest_end(gang) if draft.snapshot.run_times.records else None,
    )


def _repair(draft: Draft, gang: Gang, looked: SlotReview, keep_deadline: bool) -> None:
    """Give other nodes to the slots that need them; the other slots keep theirs.

    This may take nodes that are reserved for a waiting gang. Otherwise both gangs could wait for ever, because the
    waiting gang may wait for the slots that this one holds.
    """
    groups = _groups(gang, looked.replace)
    chosen = _choose(draft, gang, groups)
    if isinstance(chosen, Shortage):
        if _take_back(draft, gang, groups):
            return
        draft.kept.keep(gang, groups, _start(draft, gang, groups))
        waits(draft, gang, Reason(Why.NOT_ENOUGH_NODES, chosen.need, chosen.have))
        draft.short.append((gang, groups, True))
        if not keep_deadline and gives_back(gang, looked):
            draft.giving_back.add(gang.key)
        return
    if looked.wait:  # the bind deadline starts only when all pods can be bound; until then the plan reserves the nodes
        waits(draft, gang, old_pods(looked))
        return
    if looked.unsettled:
        return
    reasons = sorted({reason.text() for reason in looked.replace.values()})
    write(draft, gang, chosen, keep_deadline=keep_deadline, reason="; ".join(reasons) or "restart")


def _let_join(draft: Draft) -> None:
    """Give the remaining room to extra pods of running gangs."""
    for queue in sorted(draft.snapshot.joining.values(), key=lambda queue: queue[0].order):
        for gang in (queue[index] for index in range(len(queue))):
            if gang.writing or gang.binding or gang.key in draft.leaving:
                continue
            closed = draft.kept.closed_to(would_end_at(gang, draft.now))
            chosen = room_for_joiners(draft.ledger, draft.recalled.matcher, gang, closed)
            if chosen:
                write(draft, gang, chosen, reason="more members join")
            if len(chosen) < len(gang.joiners) and gang.elastic:
                break  # the gangs after it have the same requests


def _short(draft: Draft, gang: Gang, groups: Groups, short: Shortage, closed: Closed) -> bool:
    behind = draft.kept.in_the_way(gang, groups)
    impossible = draft.recalled.refusals.impossible(gang.key, groups)
    if impossible is not None:
        why = Why.TOO_MANY_WAYS if impossible.gave_up else Why.MORE_THAN_THE_CLUSTER
        waits(draft, gang, Reason(why, impossible.need, impossible.have))
        return True
    if _take_back(draft, gang, groups):
        return True
    draft.kept.keep(gang, groups, _start(draft, gang, groups, closed) if behind is None else None)
    draft.short.append((gang, groups, False))
    if behind is not None:
        waits(draft, gang, is_behind(gang, behind, short.need, short.have))
    else:
        why = Why.TOO_MANY_WAYS if short.gave_up else Why.NOT_ENOUGH_NODES
        waits(draft, gang, Reason(why, short.need, short.have))
    return False


def _take_back(draft: Draft, gang: Gang, groups: Groups) -> bool:
    """Give a gang the nodes of backfilled gangs and of gangs of lower priority, if it then fits. Return whether it did.

    This comes before more gangs are backfilled, which would use the nodes that are free. If the gang would fit except
    for gangs that began a moment ago, nothing more is backfilled on its nodes, and these are asked a little later. The
    same holds if it waits only until pods that are being deleted have stopped, or until a write in flight moves a slot.
    A gang that lost nodes takes them from backfilled gangs here, and from others in `_make_room_in_order`.
    """
    if gang.key in draft.leaving:
        return False
    broken = gang.placement is not None
    if broken and not any(has_overtaken(gang, other) for other in draft.snapshot.backfilled.values()):
        return False
    closed = draft.kept.kept_from(gang)
    rests = _resting(draft, gang)
    repaired = {other.key for other, _, _ in draft.repairs}  # this plan may place them again
    if broken or not repaired:
        draft.searched.add(gang.key)
    made = make_room(draft, gang, groups, closed=closed, spared=rests.keys() | repaired)
    if made is not None:
        if any(has_overtaken(gang, other) for other in made.victims):
            draft.delayed.append(gang.key)
        _take_over(draft, gang, made)
        return True
    made = make_room(draft, gang, groups, closed=closed, spared=repaired) if rests else None
    if made is not None:
        draft.delayed.append(gang.key)
        draft.kept.now_due(groups)
        wake(draft, max(rests.get(other.key, 0.0) for other in made.victims))
    elif fits_once_stopped(draft, gang, groups, closed, repaired):
        draft.kept.now_due(groups)
    return False


def _resting(draft: Draft, gang: Gang) -> dict[str, float]:
    """Return until when `gang` does not ask backfilled gangs, by key, to leave, because they began a moment ago."""
    rests = {other.key: rests_until(other, draft.now, draft.settings) for other in overtakers(draft.snapshot, gang)}
    return {key: until for key, until in rests.items() if until}


def _start(draft: Draft, gang: Gang, groups: Groups, closed: Closed = OPEN) -> Start | None:
    """Return when time limits free room for these slots, and record it in the plan."""
    if not draft.snapshot.ending:
        return None
    beside = gang.nodes_beside({slot for slots in groups.values() for slot in slots})
    start = start_of(draft.snapshot, draft.recalled.gains, groups, room_for(draft, groups, closed, beside), draft.now)
    if start is not None:
        draft.starts[gang.key] = start
    return start


def _make_room_in_order(draft: Draft) -> None:
    """Find victims for gangs that lack nodes: gangs of lower priority, and later gangs that do not run.

    If there are none for the first gang, gangs on partly used nodes may move together.
    """
    for at, (gang, groups, stuck) in enumerate(draft.short):
        if gang.key in draft.leaving:
            continue
        later = [
            other
            for other, lost, broken in draft.short[at + 1 :]
            if stuck and broken and not continues_without(other, _count(lost))
        ]
        others = [other for other in later if may_take(draft, gang, other)]
        made = None
        if others or gang.key not in draft.searched:
            closed = OPEN if stuck else draft.kept.kept_from(gang)
            made = make_room(draft, gang, groups, closed=closed, stuck=others, spared=_resting(draft, gang))
        if made is not None:
            _take_over(draft, gang, made)
        elif stuck and _shrink(draft, gang, groups):
            continue
        elif stuck and gang.job is not None and gang.job.requeue and is_stuck(gang, draft.settings):
            ask_to_leave(draft, gang, "NoSpare", "no spare node is there for the one it lost, and noSpare is Requeue")
        elif gang.key in draft.giving_back or (stuck and _blocks_another(draft, at)):
            assert gang.placement is not None
            draft.actions.append(DeletePlacement(gang.key, gang.placement, "its nodes serve it no more"))
        elif not at and not stuck and draft.snapshot.run_times.records:
            for other in movers(draft, gang, groups):
                ask_to_leave(draft, other, "Moved", f"moves to another node, so that {gang.full_name} gets whole nodes")


def _blocks_another(draft: Draft, at: int) -> bool:
    """Return whether the gang runs on none of its nodes and may block another gang that lost nodes.

    If neither has a bound pod, the later one yields.
    """
    gang = draft.short[at][0]
    if not (runs_nowhere(gang) and is_stuck(gang, draft.settings)):
        return False
    return any(
        broken and other is not gang and other.key not in draft.leaving and (place < at or not runs_nowhere(other))
        for place, (other, _, broken) in enumerate(draft.short)
    )


def _shrink(draft: Draft, gang: Gang, groups: Groups) -> bool:
    """Continue without the slots that have no spare node, if the job allows it and enough others remain."""
    ledger = draft.ledger.fork()
    chosen = as_many_as_fit(ledger, draft.recalled.matcher, gang, groups)
    lost = {slot for slots in groups.values() for slot in slots} - chosen.keys()
    if not continues_without(gang, len(lost)):
        return False
    draft.ledger.adopt(ledger)
    draft.waiting.pop(gang.key, None)
    text = f"there is no spare node: it continues with {gang.wanted - len(lost)} of {gang.size} nodes"
    write(draft, gang, chosen, reason=text, without=lost)
    return True


def _take_over(draft: Draft, gang: Gang, made: MadeRoom) -> None:
    """Write the Placement before the victims leave. It reserves the nodes, and lets a new leader continue.

    Victims that need eviction are first tried in a dry run. A refusal changes the choice of victims.
    """
    names = few(other.full_name for other in made.victims)
    draft.leaving.update(other.key for other in made.victims)
    untried = [other for other in made.victims if not is_leaving(other) and not is_tried(other, draft.now)]
    if untried:
        draft.actions += [try_eviction(other, gang) for other in untried]
    else:
        within_s = room_within_s(made.victims, draft.settings)
        write(draft, gang, made.nodes, reason=f"preempts for it: {names}", room_within_s=within_s)
        waits(draft, gang, Reason(Why.MAKING_ROOM, len(gang.pending), detail=names))
    for slot, name in made.nodes.items():
        bucket = draft.ledger.room(draft.snapshot.nodes[name])
        if bucket is not None:
            draft.ledger.take(bucket, [name], gang.pending_class[slot], 1)


def _behind(draft: Draft, queue: Queue, at: int) -> None:
    """Handle the gangs behind a waiting gang in its queue: each is backfilled or waits."""
    head = queue[at]
    placed = _backfill(draft, queue, head)
    rest = range(at + 1, len(queue))
    waiting, alike = draft.waiting, dict[tuple[int, str], Reason]()
    for index in rest[:_REPORTED_PER_QUEUE]:
        gang = queue[index]
        if gang.key not in placed:
            kind = (gang.size, gang.team)
            if kind not in alike:
                alike[kind] = is_behind(gang, head, gang.size)
            waiting[gang.key] = alike[kind]
    draft.unreported += max(0, len(rest) - _REPORTED_PER_QUEUE)


def _backfill(draft: Draft, queue: Queue, head: Gang) -> set[str]:
    """Place gangs behind the head that end before it starts, or that give their nodes back; return their keys."""
    placed = _backfill_reserved(draft, queue, head)
    if head.key not in draft.starts:
        return placed
    room = room_for(draft, head.counts)
    for gang in islice(queue.limited_after(head.order), _BACKFILL_DEPTH):
        if any(count > room[cls] for cls, count in gang.counts.items()):
            continue  # the common case: no room is free
        if gang.writing or gang.binding or _name_taken(draft, gang):
            continue
        closed = draft.kept.closed_to(would_end_at(gang, draft.now))
        chosen = _choose(draft, gang, _groups(gang, gang.pending), closed)
        if not isinstance(chosen, Shortage):
            _give(draft, gang, chosen)
            placed.add(gang.key)
    return placed


def _backfill_reserved(draft: Draft, queue: Queue, head: Gang) -> set[str]:
    """Place gangs behind the head on reserved nodes until it starts, in queue order; return their keys.

    Gangs of one kind fit alike, so if one does not fit, those of its kind after it do not fit either.
    """
    placed: set[str] = set()
    kinds = queue.candidates_after(head.order)
    if not kinds:
        return placed
    closed = draft.kept.closed_to_restartable()
    room = room_for(draft, head.counts, closed)
    if not any(room.values()):
        return placed  # the common case
    turns: list[tuple[tuple[bool, Order], int, Gang, Iterator[Gang]]] = []
    for index, gangs in enumerate(kinds):
        first = next(gangs)
        turns.append((backfill_order(first, draft.settings), index, first, gangs))
    heapq.heapify(turns)
    tries = 0
    while turns and tries < _BACKFILL_DEPTH:
        _, index, gang, gangs = heapq.heappop(turns)
        if any(count > room[cls] for cls, count in gang.counts.items()):
            continue
        if not (gang.writing or gang.binding or _name_taken(draft, gang)):
            if not gang.restartable and draft.recalled.expected.run_s(gang) == inf:
                continue
            tries += 1
            if not _give_until_needed(draft, gang, _groups(gang, gang.pending)):
                continue
            placed.add(gang.key)
            room = room_for(draft, head.counts, closed)
        after = next(gangs, None)
        if after is not None:
            heapq.heappush(turns, (backfill_order(after, draft.settings), index, after, gangs))
    return placed


def _name_taken(draft: Draft, gang: Gang) -> bool:
    others = draft.snapshot.gangs_by_name.get(gang.full_name, ())
    if gang.single or len(others) <= 1:
        return False
    return any(key != gang.key and draft.snapshot.gangs[key].placement is not None for key in others)


def is_behind(gang: Gang, head: Gang, need: int, have: int = 0) -> Reason:
    """Return why a gang waits behind the head of the queue; names the head's team if both have one."""
    team = ""
    if gang.team and head.team:
        team = "the same team" if gang.team == head.team else f"team {head.team}"
    return Reason(Why.BEHIND, need, have, head.full_name, team, head=head.key)


def _count(groups: Groups) -> int:
    return sum(len(slots) for slots in groups.values())


def _groups(gang: Gang, slots: Mapping[int, object]) -> dict[PodClass, list[int]]:
    groups: dict[PodClass, list[int]] = {}
    for slot in sorted(slots):
        groups.setdefault(gang.pending_class[slot], []).append(slot)
    return groups
