"""Continues gangs that have a placement until they are bound or released. The first half of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.api.words import counted, few
from muster.scheduler.draft import Draft
from muster.scheduler.gangs.gang import Gang, PodRecord, seconds
from muster.scheduler.gangs.placements import is_leaving, is_open, started_at
from muster.scheduler.gangs.slots import SlotReview, never_ran, old_pods, review
from muster.scheduler.plan import Bind, DeletePlacement, MarkBound, ReleaseGang, RemoveMember, StayOn
from muster.scheduler.preemption.eviction import by_eviction, evict, is_tried, to_evict, try_eviction
from muster.scheduler.preemption.victims import Vacating, leaves_by, vacating
from muster.scheduler.queue.lending import lent_nodes, outranks
from muster.scheduler.reasons import Reason, Why

PREEMPTED = "PreemptionByScheduler"
"""Condition reason, as kube-scheduler writes it (Kubernetes: pod disruption conditions)."""


@dataclass(slots=True)
class CarryingOn(Draft):
    """Draft of actions for existing placements; those that need other nodes are left in `repairs`."""

    def carry_on(self, gang: Gang) -> None:
        """Plan what a gang with a placement needs, except finding new nodes, which waits for its turn."""
        placement = gang.placement
        if gang.writing or gang.key in self.leaving:
            return
        if placement is None:
            if gang.lost_its_placement and not gang.binding:
                self.write(gang, {}, reason="its placement was deleted", without=gang.ran_without)
            return
        if placement.status.phase == "Released":
            self._release(gang)
        elif is_leaving(gang):
            self._leave(gang)
        elif not gang.current:
            self._podless(gang)
        elif placement.spec.preempting:
            self._await_room(gang)
        elif is_open(placement, self.settings.bind_deadline_s):
            self._finish_open(gang)
        elif gang.pending:
            self._restart(gang)
        elif gang.surplus:
            self.write(gang, {}, reason="it has fewer members", without=gang.surplus)

    def _release(self, gang: Gang) -> None:
        """Remove bound members, then the placement: only then may the gang be placed again."""
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

    def _leave(self, gang: Gang) -> None:
        """Delete the placement when the last pod is confirmed gone. The gang's controller deletes the pods.

        After the deadline the scheduler deletes the remaining pods.
        """
        placement = gang.placement
        assert placement is not None
        there = [pod for pod in gang.pods.values() if pod.counted_on]
        if not there:
            if not gang.binding:
                self.actions.append(DeletePlacement(gang.key, placement, placement.status.message))
            return
        self.waits(gang, Reason(Why.LEAVING, detail=placement.status.message))
        deadline = leaves_by(gang, self.settings)
        if by_eviction(gang):
            self._drain(gang, deadline)
            return
        if self.now < deadline:
            self.wake(deadline)
            return
        for pod in sorted(there, key=lambda pod: pod.name):
            if not pod.terminating:
                self._remove(gang, pod, placement.status.message)
        self.wake(self.now + 1.0)

    def _drain(self, gang: Gang, deadline: float) -> None:
        """Evict the gang's remaining pods. If that is refused until the deadline, the gang stays and is repaired."""
        assert gang.placement is not None
        left = to_evict(gang)
        if left and self.now >= deadline and all(pod.error for pod in left):
            text = f"{len(left)} of its pods could not be evicted in time; {left[0].name}: {left[0].error}"
            self.actions.append(StayOn(gang.key, gang.placement, text))
            return
        self._evict(left, gang.placement.status.message)
        if left:
            self.wake(max(deadline, self.now + 1.0))

    def _evict(self, pods: Iterable[PodRecord], text: str) -> None:
        for pod in pods:
            if pod.retry_at > self.now:
                self.wake(pod.retry_at)
            else:
                self.actions.append(evict(pod, text))

    def _remove(self, gang: Gang, pod: PodRecord, text: str) -> None:
        self.actions.append(RemoveMember(gang.key, pod.namespace, pod.name, pod.uid, text, PREEMPTED))

    def _await_room(self, gang: Gang) -> None:
        """Wait until victims leave the gang's nodes. Bind it when all nodes are free, else plan it again."""
        placement = gang.placement
        assert placement is not None
        blocker = gang.blocker()
        if blocker is not None:
            self.waits(gang, blocker)
        look = vacating(self.snapshot, gang, self.now, self.settings, self.leaving)
        if blocker is None and not look.names and not look.hopeless:
            self.write(gang, {}, reason="the nodes are free")
            return
        deadline = seconds(placement.spec.bind_deadline)
        if look.hopeless or self.now >= deadline:
            if not any(member.node for member in gang.current.values()):
                self.actions.append(DeletePlacement(gang.key, placement, "its nodes did not become free"))
            elif blocker is None:
                self.repairs.append((gang, review(self.snapshot, self.ledger, gang), False))
            return
        self.wake(deadline)
        untried = [other for other in (*look.tell, *look.remove) if not is_tried(other, self.now)]
        for other in untried:
            self.actions.append(try_eviction(other, gang))
        if not untried:  # preempts only when it is known that all victims may be evicted
            self._have_leave(gang, look)
        if blocker is None:
            names = few([self.snapshot.gangs[key].full_name for key in look.names])
            self.waits(gang, Reason(Why.MAKING_ROOM, len(gang.pending), detail=names))

    def _have_leave(self, gang: Gang, look: Vacating) -> None:
        for other in look.tell:
            if outranks(gang, other) or lent_nodes(self.snapshot, gang, other):
                self.ask_to_leave(other, "Preempted", self._preempted(gang, other))
            else:
                text = f"yields to {gang.full_name}, which is earlier and lost nodes too, as no spare node is there"
                self.ask_to_leave(other, "Yielded", text)
        for other in look.remove:
            text = self._preempted(gang, other)
            self.leaving.add(other.key)
            if by_eviction(other):
                self._evict(to_evict(other), text)
                continue
            for pod in other.pods.values():
                if pod.live:
                    self._remove(other, pod, text)

    def _preempted(self, gang: Gang, other: Gang) -> str:
        lent = lent_nodes(self.snapshot, gang, other)
        if lent:
            return f"gives {counted(lent, 'node')} back to team {gang.team}: {gang.full_name} needs them"
        return f"preempted by {gang.full_name} (priority {gang.priority})"

    def _podless(self, gang: Gang) -> None:
        """Reserve slots for pods to come, until they cannot come or the hold expires."""
        assert gang.placement is not None
        since = gang.podless_since if gang.podless_since is not None else self.now
        reason = ""
        if gang.single:
            reason = "the pod is gone"
        elif gang.ended:
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
                self.write(gang, {}, keep_deadline=True, reason="bound by another scheduler")
            elif gang.single:
                self.actions.append(DeletePlacement(gang.key, gang.placement, "the pod is bound"))
            else:
                self.actions.append(MarkBound(gang.key, gang.placement))
            return
        if self.now >= deadline:
            self._overdue(gang)
            return
        self.wake(deadline)
        if len(gang.pending) == gang.binding:
            self.waits(gang, Reason(Why.BINDING, len(gang.current), len(gang.current) - len(gang.pending)))
            return
        blocker = gang.blocker()
        if blocker is not None:
            self.waits(gang, blocker)
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
            self.waits(gang, old_pods(looked))
        else:
            self.waits(gang, Reason(Why.BINDING, len(gang.current), len(gang.current) - len(gang.pending)))

    def _overdue(self, gang: Gang) -> None:
        """Release the gang; or plan it again if nothing is half done.

        Nothing is half done in two cases:

        - nothing is bound and no bind was refused (the leader was away);
        - members that were bound before this revision still run.
        """
        placement = gang.placement
        assert placement is not None
        if gang.binding:
            return  # the requests have deadlines of their own, shorter than ours
        # The API server records binds in whole seconds, so a bind in the second of the start is of this revision.
        start = int(started_at(placement, self.settings.bind_deadline_s).timestamp())
        survivors = any(member.node and 0 < member.bound_since < start for member in gang.current.values())
        errors = sorted({member.error for member in gang.pending.values() if member.error})
        bound = len(gang.current) - len(gang.pending)
        if gang.blocker() is not None and never_ran(gang):  # its other pods may never come
            self.cannot_be_considered(gang)
            self.actions.append(DeletePlacement(gang.key, placement, "it was not bound in time"))
            return
        if survivors or not (bound or errors):
            self._restart(gang)
            return
        detail = f": {errors[0]}" if errors else ""
        text = f"{bound} of {len(gang.current)} pods were bound within {self.settings.bind_deadline_s:.0f} s{detail}"
        self.actions.append(ReleaseGang(gang.key, placement, text))

    def _restart(self, gang: Gang) -> None:
        """Plan again once all recreated members exist."""
        if gang.blocker() is not None:
            self.cannot_be_considered(gang)
            return
        looked = review(self.snapshot, self.ledger, gang)
        if not self._give_up(gang, looked, keep_deadline=False):
            self.repairs.append((gang, looked, False))

    def _give_up(self, gang: Gang, looked: SlotReview, *, keep_deadline: bool) -> bool:
        """Drop members beyond the minimum whose nodes are unusable. They rejoin if there is room, and delay no gang."""
        extras = gang.extras(looked.replace) & gang.placed.keys()
        if extras:
            reason = "without members beyond its minimum"
            self.write(gang, {}, reason=reason, keep_deadline=keep_deadline, without=extras)
        return bool(extras)
