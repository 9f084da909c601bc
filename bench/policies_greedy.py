"""A scheduler without reservations, for comparison: every gang that fits starts, in queue order.

Queues that are called best-effort FIFO work like this. The first gang in the queue reserves no nodes, so a large gang
may wait as long as smaller ones arrive. Repairs and preemption are Muster's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from muster.scheduler.decide import decide
from muster.scheduler.draft import Draft, room_for, write
from muster.scheduler.gangs.gang import Gang, Order
from muster.scheduler.memo import Memo, recall
from muster.scheduler.placement.place import Shortage
from muster.scheduler.plan import Bind, MarkBound, Plan, Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.snapshot import Queue, Snapshot


def greedy(snapshot: Snapshot, now: float, settings: Settings, memo: Memo) -> Plan:
    """Return Muster's plan while it has actions, and then one that starts all other gangs that fit."""
    plan = decide(snapshot, now, settings, memo)
    if any(type(action) is not MarkBound for action in plan.actions):
        return plan
    draft = Draft(snapshot, now, settings, recall(snapshot, now, plan.memo))
    for gang in heapq.merge(*(_fitting(draft, queue) for queue in snapshot.queues.values()), key=_order):
        _start(draft, gang)
    return msgspec.structs.replace(plan, actions=(*plan.actions, *draft.actions))


def _order(gang: Gang) -> Order:
    return gang.order


def _fitting(draft: Draft, queue: Queue) -> Iterator[Gang]:
    """Yield the gangs that may fit on the free nodes. Gangs of one queue differ only in their size."""
    room, known = room_for(draft, queue[0].counts), len(draft.actions)
    for index in range(len(queue)):
        if known != len(draft.actions):
            room, known = room_for(draft, queue[0].counts), len(draft.actions)
        if not any(room.values()):
            return
        gang = queue[index]
        if all(count <= room[cls] for cls, count in gang.counts.items()):
            yield gang


def _start(draft: Draft, gang: Gang) -> None:
    groups: dict[PodClass, list[int]] = {}
    for slot in sorted(gang.pending):
        groups.setdefault(gang.pending_class[slot], []).append(slot)
    slots = set(gang.pending)
    chosen = draft.recalled.refusals.choose(
        gang.key,
        draft.ledger,
        groups,
        failed=gang.failed_nodes,
        taken=gang.nodes_beside(slots),
        given_up=[held for slot, held in gang.holds.items() if slot in slots],
    )
    if isinstance(chosen, Shortage):
        return
    if gang.single:
        member = gang.pending[0]
        draft.actions.append(Bind(gang.key, member.namespace, member.name, member.uid, chosen[0]))
    else:
        write(draft, gang, chosen, reason="")
