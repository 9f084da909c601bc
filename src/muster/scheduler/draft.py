"""Draft of a plan, with the snapshot and settings it is made from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from muster.api.placement import Backfill, LeavingReason
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import planned
from muster.scheduler.gangs.slots import SlotReview
from muster.scheduler.memo import Recalled
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.place import Groups, candidates
from muster.scheduler.plan import Action, Refuse, Settings, TellToLeave, WritePlacement
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.preemption.searches import FailedSearch
from muster.scheduler.queue.backfill import Start
from muster.scheduler.queue.reservations import Reservations
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot


@dataclass(slots=True)
class Draft:
    """The plan under construction, private to one call of `decide`; its functions fill it step by step.

    Attributes:
        ledger: the free room on nodes, without the room that this plan uses.
        recalled: results from the memo, and results that this plan adds.
        repairs: gangs whose slots need other nodes, and whether their placement keeps its deadline.
        leaving: gangs that this plan preempts.
        written: gangs whose placement this plan writes.
        moving: (node, class) of slots that gangs give up with a write of this plan, or with a write in flight.
        kept: nodes reserved for waiting gangs.
        short: gangs that lack nodes, in queue order. For each: its slots by class, and whether it had lost nodes.
        searches: failed searches for victims, by gang; None if the next search may run at once.
        searched: gangs for which this plan has searched for victims before it backfilled gangs.
        delayed: gangs that would start now if no gang were backfilled on their nodes.
        giving_back: gangs in `short` that give up their placement if the search finds no victims.
    """

    snapshot: Snapshot
    now: float
    settings: Settings
    recalled: Recalled
    actions: list[Action] = field(default_factory=list)
    waiting: dict[str, Reason] = field(default_factory=dict)
    wake_at: float | None = None
    ledger: Ledger = field(init=False)
    repairs: list[tuple[Gang, SlotReview, bool]] = field(default_factory=list)
    leaving: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    moving: list[tuple[str, PodClass | None]] = field(default_factory=list)
    unreported: int = 0
    starts: dict[str, Start] = field(default_factory=dict)
    kept: Reservations = field(init=False)
    short: list[tuple[Gang, Groups, bool]] = field(default_factory=list)
    searched: set[str] = field(default_factory=set)
    delayed: list[str] = field(default_factory=list)
    giving_back: set[str] = field(default_factory=set)
    searches: dict[str, FailedSearch | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.snapshot.buckets)
        nodes = self.snapshot.nodes
        for key, slots in self.snapshot.giving_up.items():
            self.moving += [(name, nodes[name].holds[key, slot]) for name, slot in slots]
        recalled = self.recalled
        self.kept = Reservations(
            self.snapshot, recalled.matcher, self.ledger, recalled.expected, self.settings, self.now
        )


def wake(draft: Draft, at: float) -> None:
    """Set the time of the next plan to `at`, or keep an earlier one."""
    draft.wake_at = at if draft.wake_at is None else min(draft.wake_at, at)


def write(
    draft: Draft,
    gang: Gang,
    chosen: Mapping[int, str],
    *,
    reason: str,
    keep_deadline: bool = False,
    without: Collection[int] = (),
    room_within_s: float | None = None,
    backfill: Backfill | None = None,
) -> None:
    """Write the gang's next Placement, `without` some slots. `room_within_s`: time limit for victims to leave first.

    `backfill`: the gang for which these nodes are reserved, in a first Placement.
    """
    nodes = {
        slot: placed
        for slot, placed in gang.placed.items()
        if (gang.elastic or slot < gang.size) and slot not in without
    }
    for slot, member in gang.current.items():
        if member.node and nodes.get(slot, ("",))[0] != member.node:
            node = draft.snapshot.nodes.get(member.node)
            nodes[slot] = (member.node, node.uid if node is not None else "")
    known = draft.snapshot.nodes
    nodes.update({slot: (name, known[name].uid) for slot, name in chosen.items()})
    placement = planned(
        gang,
        nodes,
        draft.now,
        draft.settings.bind_deadline_s if room_within_s is None else room_within_s,
        keep_deadline=keep_deadline,
        preempting=room_within_s is not None,
        given_up=_given_up(gang, nodes, without),
        backfill=backfill,
    )
    draft.actions.append(WritePlacement(gang.key, placement, reason))
    draft.moving += [held for slot, held in gang.holds.items() if slot in chosen and held[0] != chosen[slot]]
    draft.written.add(gang.key)


def ask_to_leave(draft: Draft, gang: Gang, reason: LeavingReason, message: str) -> None:
    """Ask the gang to give its nodes back."""
    if gang.placement is not None and gang.key not in draft.leaving:
        draft.leaving.add(gang.key)
        draft.actions.append(TellToLeave(gang.key, gang.placement, reason, message))


def report_blocker(draft: Draft, gang: Gang) -> None:
    """Record why the gang cannot be placed. Unsupported or invalid constraints are also reported on the pod."""
    reason = gang.blocker()
    if reason is None:
        return
    waits(draft, gang, reason)
    if reason.why in (Why.NOT_SUPPORTED, Why.INVALID):
        member = gang.current[min(gang.problems)]
        draft.actions.append(Refuse(gang.key, member.namespace, member.name, member.uid, reason))


def waits(draft: Draft, gang: Gang, reason: Reason) -> None:
    """Record why the gang waits."""
    draft.waiting[gang.key] = reason


def room_for(
    draft: Draft, classes: Iterable[PodClass], closed: Closed = OPEN, beside: Collection[str] = ()
) -> dict[PodClass, int]:
    """Return how many pods of each class fit. Closed nodes and nodes in `beside` do not count."""
    matcher = draft.recalled.matcher
    return {cls: sum(c.room for c in candidates(draft.ledger, matcher, cls, closed, beside)) for cls in classes}


def _given_up(gang: Gang, placed: Collection[int], without: Collection[int]) -> dict[int, int]:
    """Return slot -> attempt of the slots that a gang of fixed size continues without."""
    if gang.elastic:
        return {}
    lost = {slot: gang.current[slot].attempt for slot in without if slot in gang.current}
    if gang.placement is None:
        lost = gang.ran_without | lost
    return {slot: attempt for slot, attempt in (gang.given_up | lost).items() if slot not in placed}
