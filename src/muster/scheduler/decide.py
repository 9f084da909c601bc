"""What to do now, from what is known now. Pure: same snapshot and time, same plan.

The rules, in the order in which they apply:

- A placement is carried to its end first: bound as a whole by its deadline, or released.
- Gangs get nodes by priority, then arrival, each as a whole or not at all.
- A gang with a placement keeps its slots; only slots whose node no longer serves are placed again, all together.
- The first gang that waits for nodes keeps every node it could use from gangs after it that hold nothing yet, except
  from those whose time limit ends them before it starts. One that would not fit into the empty cluster keeps nothing:
  it would block for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from muster.scheduler.backfill import Start, start_of, would_end_at
from muster.scheduler.gangs import Gang, seconds
from muster.scheduler.joining import room_for_joiners
from muster.scheduler.ledger import Ledger
from muster.scheduler.placements import is_open, planned, started_at
from muster.scheduler.placing import Groups, Shortage, candidates, choose, shortage
from muster.scheduler.plan import (
    Action,
    Bind,
    DeletePlacement,
    MarkBound,
    Plan,
    Refuse,
    ReleaseGang,
    RemoveMember,
    Settings,
    WritePlacement,
)
from muster.scheduler.podclass import PodClass
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.reservations import Reservations
from muster.scheduler.slots import SlotReview, review
from muster.scheduler.snapshot import Queue, Snapshot

DEFAULTS = Settings()
_Turn = tuple[Queue, int] | tuple[Gang, SlotReview, bool]


def decide(snapshot: Snapshot, now: float, settings: Settings = DEFAULTS) -> Plan:
    """Return everything to do. `now` in seconds since the epoch."""
    planner = _Planner(snapshot, now, settings)
    for gang in sorted(snapshot.attention.values(), key=lambda gang: gang.order):
        planner.carry_on(gang)
    planner.place_in_order()
    planner.let_join()
    for gang in snapshot.waiting.values():
        planner.cannot_be_considered(gang)
    return Plan(tuple(planner.actions), planner.waiting, planner.unreported, planner.wake_at, planner.starts)


@dataclass(slots=True)
class _Planner:
    snapshot: Snapshot
    now: float
    settings: Settings
    actions: list[Action] = field(default_factory=list)
    waiting: dict[str, Reason] = field(default_factory=dict)
    unreported: int = 0
    wake_at: float | None = None
    ledger: Ledger = field(init=False)
    repairs: list[tuple[Gang, SlotReview, bool]] = field(default_factory=list)
    starts: dict[str, Start] = field(default_factory=dict)
    kept: Reservations = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.snapshot.buckets)
        self.kept = Reservations(self.snapshot)

    def wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    # Gangs with a placement

    def carry_on(self, gang: Gang) -> None:
        """Do what a gang with a placement needs, except for finding new nodes, which has to wait for its turn."""
        placement = gang.placement
        if placement is None or gang.writing:
            return
        if placement.status.phase == "Released":
            self._release(gang)
        elif not gang.current:
            self._podless(gang)
        elif is_open(placement, self.settings.bind_deadline_s):
            self._finish_open(gang)
        elif gang.pending:
            self._restart(gang)
        elif gang.surplus:
            self._write(gang, {}, keep_deadline=False, reason="it has fewer members", without=gang.surplus)

    def _release(self, gang: Gang) -> None:
        """Bound members go, then the placement: only then may the gang be placed anew."""
        assert gang.placement is not None
        bound = [member for _, member in sorted(gang.current.items()) if member.node]
        for member in bound:
            text = "the gang was not bound as a whole in time"
            self.actions.append(RemoveMember(gang.key, member.namespace, member.name, member.uid, text))
        if bound:
            self.waiting[gang.key] = Reason(Why.RELEASING)
            self.wake(self.now + 1.0)  # a removal that failed is tried again
        elif not gang.binding:
            self.actions.append(DeletePlacement(gang.key, gang.placement, "released"))

    def _podless(self, gang: Gang) -> None:
        """Slots are kept for pods to come, until nobody can want them or the hold is over."""
        assert gang.placement is not None
        since = gang.podless_since if gang.podless_since is not None else self.now
        reason = ""
        if gang.ended:
            reason = f"the job is {gang.ended}"
        elif gang.owner_missing:
            reason = "the job is gone"
        elif len(self.snapshot.gangs_by_name.get(gang.full_name, ())) > 1:
            reason = "another job has taken the name"
        elif self.now >= since + self.settings.hold_s:
            reason = f"no pod for {self.settings.hold_s:.0f} s"
        if reason:
            self.actions.append(DeletePlacement(gang.key, gang.placement, reason))
        else:
            self.wake(since + self.settings.hold_s)

    def _finish_open(self, gang: Gang) -> None:
        assert gang.placement is not None
        deadline = seconds(gang.placement.spec.bind_deadline)
        if gang.revision_since is not None:  # the clock of the scheduler that wrote it may be ahead of ours
            deadline = min(deadline, gang.revision_since + self.settings.bind_deadline_s)
        if gang.complete and not gang.pending:
            if any(member.node != gang.placed.get(slot, ("",))[0] for slot, member in gang.current.items()):
                self._write(gang, {}, keep_deadline=True, reason="bound by somebody else")
            else:
                self.actions.append(MarkBound(gang.key, gang.placement))
            return
        if self.now >= deadline:
            self._overdue(gang)
            return
        self.wake(deadline)
        if len(gang.pending) == gang.binding:
            self._waits(gang, Reason(Why.BINDING, gang.size, gang.size - len(gang.pending)))
            return
        blocker = gang.blocker()
        if blocker is not None:
            self._waits(gang, blocker)
            return
        looked = review(self.snapshot, self.ledger, gang)
        if looked.replace:
            if not gang.binding and not self._give_up(gang, looked, keep_deadline=True):
                self.repairs.append((gang, looked, True))
            return
        for slot, node in looked.keep.items():
            member = gang.pending[slot]
            if member.binding:
                continue
            if member.retry_at > self.now:
                self.wake(member.retry_at)
                continue
            self.actions.append(Bind(gang.key, member.namespace, member.name, member.uid, node, slot))
        if looked.wait:
            self._waits(gang, _old_pods(looked))
        else:
            self._waits(gang, Reason(Why.BINDING, gang.size, gang.size - len(gang.pending)))

    def _overdue(self, gang: Gang) -> None:
        """Release the gang, or try anew where nothing is half done.

        That is where nothing is bound and no bind was refused (a leader was away), or where members that were bound
        before this revision run on.
        """
        placement = gang.placement
        assert placement is not None
        if gang.binding:
            return  # the requests have deadlines of their own, shorter than ours
        # The API server notes binds in whole seconds: a bind within the second of the start is one of this revision.
        start = int(started_at(placement, self.settings.bind_deadline_s).timestamp())
        survivors = any(member.node and 0 < member.bound_since < start for member in gang.current.values())
        errors = sorted({member.error for member in gang.pending.values() if member.error})
        bound = len(gang.current) - len(gang.pending)
        if survivors or not (bound or errors):
            self._restart(gang)
            return
        detail = f": {errors[0]}" if errors else ""
        text = f"{bound} of {gang.size} pods were bound within {self.settings.bind_deadline_s:.0f} s{detail}"
        self.actions.append(ReleaseGang(gang.key, placement, text))

    def _restart(self, gang: Gang) -> None:
        """Some or all members were made anew: plan once all of them are there."""
        if gang.blocker() is not None:
            self.cannot_be_considered(gang)
            return
        looked = review(self.snapshot, self.ledger, gang)
        if not self._give_up(gang, looked, keep_deadline=False):
            self.repairs.append((gang, looked, False))

    def _give_up(self, gang: Gang, looked: SlotReview, *, keep_deadline: bool) -> bool:
        """Members beyond the minimum whose nodes serve no more join again where there is room; they delay nobody."""
        extras = gang.extras(looked.replace) & gang.placed.keys()
        if extras:
            self._write(
                gang, {}, keep_deadline=keep_deadline, reason="without members beyond its minimum", without=extras
            )
        return bool(extras)

    # Finding nodes

    def place_in_order(self) -> None:
        """Go through everything that needs nodes, by priority and arrival."""
        turns: list[tuple[tuple[float, float, str], int, _Turn]] = []
        queues = list(self.snapshot.queues.values())
        for index, queue in enumerate(queues):
            turns.append((queue[0].order, index, (queue, 0)))
        for index, repair in enumerate(self.repairs, start=len(queues)):
            turns.append((repair[0].order, index, repair))
        heapq.heapify(turns)
        while turns:
            _, index, turn = heapq.heappop(turns)
            if len(turn) == 3:
                self._repair(*turn)
                continue
            queue, at = turn
            if self._place(queue[at]):
                if at + 1 < len(queue):
                    heapq.heappush(turns, (queue[at + 1].order, index, (queue, at + 1)))
            else:
                self._behind(queue, at)

    def _place(self, gang: Gang) -> bool:
        """Place a gang that has no placement. Returns whether those after it in its queue may be looked at."""
        if gang.writing or gang.binding:
            return True
        if self._name_taken(gang):
            self._waits(gang, Reason(Why.OLD_PLACEMENT))
            return True
        groups = _groups(gang, gang.pending)
        closed = self.kept.closed_to(would_end_at(gang, self.now))
        chosen = self._choose(gang, groups, closed)
        if isinstance(chosen, Shortage):
            return self._short(gang, groups, chosen, closed)
        self._give(gang, chosen)
        return True

    def _give(self, gang: Gang, chosen: Mapping[int, str]) -> None:
        """Write the plan of a gang that has none; a single pod needs none."""
        if gang.single:
            member = gang.pending[0]
            if member.retry_at > self.now:
                self.wake(member.retry_at)
            else:
                self.actions.append(Bind(gang.key, member.namespace, member.name, member.uid, chosen[0]))
            return
        self._write(gang, chosen, keep_deadline=False, reason="")

    def _choose(self, gang: Gang, groups: Groups, reserved: Collection[int] = ()) -> dict[int, str] | Shortage:
        slots = {slot for slots in groups.values() for slot in slots}
        return choose(
            self.ledger,
            self.snapshot.matcher,
            groups,
            reserved=reserved,
            failed=gang.failed_nodes,
            taken=gang.nodes_beside(slots),
            given_up=[held for slot, held in gang.holds.items() if slot in slots],
        )

    def _repair(self, gang: Gang, looked: SlotReview, keep_deadline: bool) -> None:
        """Give other nodes to the slots that need them; the others keep theirs.

        Nodes kept for a waiting gang may be taken: that one may be waiting for the very slots this gang holds, and
        neither would ever go on.
        """
        groups = _groups(gang, looked.replace)
        chosen = self._choose(gang, groups)
        if isinstance(chosen, Shortage):
            self.kept.keep(gang, groups, self._start(gang, groups))
            self._waits(gang, Reason(Why.NOT_ENOUGH_NODES, chosen.need, chosen.have))
            return
        if looked.wait:  # the deadline starts once all can be bound; meanwhile this plan keeps the chosen nodes free
            self._waits(gang, _old_pods(looked))
            return
        reasons = sorted({reason.text() for reason in looked.replace.values()})
        self._write(gang, chosen, keep_deadline=keep_deadline, reason="; ".join(reasons) or "restart")

    def let_join(self) -> None:
        """Give what room is left to pods beyond the minimum of gangs that run."""
        for queue in sorted(self.snapshot.joining.values(), key=lambda queue: queue[0].order):
            for gang in (queue[index] for index in range(len(queue))):
                if gang.writing or gang.binding:
                    continue
                closed = self.kept.closed_to(would_end_at(gang, self.now))
                chosen = room_for_joiners(self.ledger, self.snapshot.matcher, gang, closed)
                if chosen:
                    self._write(gang, chosen, keep_deadline=False, reason="more members join")
                if len(chosen) < len(gang.joiners):
                    break  # those after it ask for the same

    def _write(
        self,
        gang: Gang,
        chosen: Mapping[int, str],
        *,
        keep_deadline: bool,
        reason: str,
        without: Collection[int] = (),
    ) -> None:
        nodes = {
            slot: placed
            for slot, placed in gang.placed.items()
            if (gang.elastic or slot < gang.size) and slot not in without
        }
        for slot, member in gang.current.items():
            if member.node and nodes.get(slot, ("",))[0] != member.node:
                node = self.snapshot.nodes.get(member.node)
                nodes[slot] = (member.node, node.uid if node is not None else "")
        for slot, name in chosen.items():
            nodes[slot] = (name, self.snapshot.nodes[name].uid)
        placement = planned(gang, nodes, self.now, self.settings.bind_deadline_s, keep_deadline=keep_deadline)
        self.actions.append(WritePlacement(gang.key, placement, reason))

    def _short(self, gang: Gang, groups: Groups, short: Shortage, closed: Collection[int]) -> bool:
        behind = self.kept.in_the_way(gang, groups)
        impossible = self._impossible(groups)
        if impossible is not None:
            why = Why.TOO_MANY_WAYS if impossible.gave_up else Why.MORE_THAN_THE_CLUSTER
            self._waits(gang, Reason(why, impossible.need, impossible.have))
            return True
        self.kept.keep(gang, groups, self._start(gang, groups, closed) if behind is None else None)
        if behind is not None:
            self._waits(gang, Reason(Why.BEHIND, short.need, short.have, behind.full_name))
        else:
            why = Why.TOO_MANY_WAYS if short.gave_up else Why.NOT_ENOUGH_NODES
            self._waits(gang, Reason(why, short.need, short.have))
        return False

    def _start(self, gang: Gang, groups: Groups, closed: Collection[int] = ()) -> Start | None:
        """Return when time limits make room for these slots, and say so in the plan."""
        if not self.snapshot.ending:
            return None
        beside = gang.nodes_beside({slot for slots in groups.values() for slot in slots})
        start = start_of(self.snapshot, groups, self._room(groups, closed, beside), self.now)
        if start is not None:
            self.starts[gang.key] = start
        return start

    def _room(
        self, classes: Iterable[PodClass], closed: Collection[int] = (), beside: Collection[str] = ()
    ) -> dict[PodClass, int]:
        matcher = self.snapshot.matcher
        return {cls: sum(c.room for c in candidates(self.ledger, matcher, cls, closed, beside)) for cls in classes}

    def _impossible(self, groups: Groups) -> Shortage | None:
        """Return what would be short on the usable nodes if no gang were on them."""
        return shortage(Ledger(self.snapshot.empty_buckets), self.snapshot.matcher, groups)

    def _behind(self, queue: Queue, at: int) -> None:
        """Gangs behind one that waits for nodes compete for its nodes: they wait, or end before it starts."""
        head = queue[at]
        placed = self._backfill(queue, head)
        rest = range(at + 1, len(queue))
        for index in rest[: self.settings.reported_per_queue]:
            gang = queue[index]
            if gang.key not in placed:
                self._waits(gang, Reason(Why.BEHIND, gang.size, 0, head.full_name))
        self.unreported += max(0, len(rest) - self.settings.reported_per_queue)

    def _backfill(self, queue: Queue, head: Gang) -> set[str]:
        """Place gangs behind the head whose time limit ends them before it starts; returns their keys."""
        placed: set[str] = set()
        if head.key not in self.starts:
            return placed
        room = self._room(head.counts)
        for gang in islice(queue.limited_after(head.order), self.settings.backfill_depth):
            if any(count > room[cls] for cls, count in gang.counts.items()):
                continue  # most often nothing is free at all
            if gang.writing or gang.binding or self._name_taken(gang):
                continue
            closed = self.kept.closed_to(would_end_at(gang, self.now))
            chosen = self._choose(gang, _groups(gang, gang.pending), closed)
            if not isinstance(chosen, Shortage):
                self._give(gang, chosen)
                placed.add(gang.key)
        return placed

    def _name_taken(self, gang: Gang) -> bool:
        others = self.snapshot.gangs_by_name.get(gang.full_name, set())
        return not gang.single and any(
            key != gang.key and self.snapshot.gangs[key].placement is not None for key in others
        )

    # Gangs that cannot be considered

    def cannot_be_considered(self, gang: Gang) -> None:
        """Say why; a constraint we do not know is also said on the pod itself."""
        reason = gang.blocker()
        if reason is None:
            return
        self._waits(gang, reason)
        if reason.why in (Why.NOT_SUPPORTED, Why.INVALID):
            member = gang.current[min(gang.problems)]
            self.actions.append(Refuse(gang.key, member.namespace, member.name, member.uid, reason))

    def _waits(self, gang: Gang, reason: Reason) -> None:
        self.waiting[gang.key] = reason


def _groups(gang: Gang, slots: Mapping[int, object]) -> dict[PodClass, list[int]]:
    groups: dict[PodClass, list[int]] = {}
    for slot in sorted(slots):
        groups.setdefault(gang.pending_class[slot], []).append(slot)
    return groups


def _old_pods(looked: SlotReview) -> Reason:
    return Reason(Why.WAITING_FOR_OLD_POD, len(looked.wait), detail=few(looked.wait.values()))


def few(names: Iterable[str]) -> str:
    """Name three, count the rest."""
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
