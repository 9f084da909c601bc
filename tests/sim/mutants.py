"""Ways to break the controllers, one idea each. What simulations are worth is whether they catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from muster.api.training_job_status import Restarts
from muster.kube.client import Client
from muster.kube.leader import Term
from muster.scheduler import decide, state
from muster.scheduler.actions.gang_events import Reporter
from muster.scheduler.actions.writer import PlacementWriter
from muster.scheduler.draft import Draft, ask_to_leave
from muster.scheduler.gangs import placed, slots
from muster.scheduler.gangs.adapters import membership
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.gangs.slots import SlotReview
from muster.scheduler.nodes.node_table import NodeTable
from muster.scheduler.placement import matching
from muster.scheduler.pods import pod_class
from muster.scheduler.preemption import make_room
from muster.scheduler.preemption.make_room import MadeRoom
from muster.scheduler.queue.overtaking import overtakers
from muster.scheduler.queue.reservations import Reservations
from muster.trainingjobs.attempts import final_checkpoint, give_way, outcome, run_record
from muster.trainingjobs.attempts.attempt import Attempt
from muster.trainingjobs.faults.rules import Verdict
from muster.trainingjobs.plan import Action, WriteStatus
from muster.trainingjobs.pods.slots import Slot, taking_part
from muster.trainingjobs.snapshot import JobSnapshot

Mutant = Callable[[], Any]
MUTANTS: dict[str, Mutant] = {}


def mutants_in(found: dict[str, Mutant]) -> Callable[[Callable[[ExitStack], None]], Callable[[ExitStack], None]]:
    """A decorator that puts a mutant there by its name."""

    def mutant(make: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
        @contextmanager
        def applied() -> Iterator[None]:
            with ExitStack() as stack:
                make(stack)
                yield

        found[make.__name__] = applied
        return make

    return mutant


_mutant = mutants_in(MUTANTS)


async def _nothing(*args: object) -> None:
    return None


@_mutant
def bind_pod_by_pod(stack: ExitStack) -> None:
    """As kube-scheduler does: every pod for itself."""

    def alone(pod: Any) -> Any:
        meta = replace(pod.metadata, labels={}, owner_references=())
        return membership(replace(pod, metadata=meta))

    stack.enter_context(patch.object(state, "membership", alone))


@_mutant
def forget_the_fence(stack: ExitStack) -> None:
    """A new leader acts at once: the lease is a fence, is it not?"""
    stack.enter_context(patch.object(Term, "outwait", _nothing))


@_mutant
def drop_the_reservation(stack: ExitStack) -> None:
    """A gang that waits for nodes keeps none: smaller ones pass it for ever."""
    stack.enter_context(patch.object(Reservations, "keep", lambda *args: None))


@_mutant
def ignore_taints(stack: ExitStack) -> None:
    stack.enter_context(patch.object(matching, "find_untolerated_taint", lambda *args: None))


@_mutant
def forget_held_slots(stack: ExitStack) -> None:
    """A slot without a pod is free for others: its job finds it taken when it comes back."""
    stack.enter_context(patch.object(NodeTable, "hold", lambda *args: None))
    stack.enter_context(patch.object(NodeTable, "unhold", lambda *args: None))


@_mutant
def skip_the_uid_precondition(stack: ExitStack) -> None:
    """Whatever pod has the name now is the one meant."""
    bind = Client.bind

    async def bind_by_name(self: Client, pod_name: str, node: str, **options: Any) -> None:
        await bind(self, pod_name, node, **{**options, "uid": ""})

    stack.enter_context(patch.object(Client, "bind", bind_by_name))


@_mutant
def forget_the_deadline(stack: ExitStack) -> None:
    """A gang that cannot be bound as a whole keeps what it has, and waits."""
    stack.enter_context(patch.object(placed, "_overdue", lambda *args: None))


@_mutant
def release_without_removing(stack: ExitStack) -> None:
    """The Placement says Released, the bound members stay."""
    stack.enter_context(patch.object(PlacementWriter, "remove", _nothing))


@_mutant
def give_room_of_leaving_pods(stack: ExitStack) -> None:
    """A pod that was asked to go takes no room any more, though its containers still run."""
    count = NodeTable.count

    def count_living(self: NodeTable, pod: PodRecord) -> None:
        if pod.terminating:
            self.uncount(pod)
        else:
            count(self, pod)

    stack.enter_context(patch.object(NodeTable, "count", count_living))


@_mutant
def newest_first(stack: ExitStack) -> None:
    """Who came last is placed first."""
    order = property(lambda self: (-self.priority, -self.arrival, self.key))
    stack.enter_context(patch.object(Gang, "order", order))


@_mutant
def ignore_priority(stack: ExitStack) -> None:
    stack.enter_context(patch.object(Gang, "order", property(lambda self: (0.0, self.arrival, self.key))))


@_mutant
def move_on_restart(stack: ExitStack) -> None:
    """A restarted gang takes whatever nodes are free: what lay on its old ones is lost."""
    review = slots.review

    def review_again(*args: Any) -> SlotReview:
        looked = review(*args)
        reason = slots.NodeReason(slots.NodeWhy.GONE, "mutant")
        return SlotReview(replace={**looked.replace, **dict.fromkeys((*looked.keep, *looked.wait), reason)})

    stack.enter_context(patch.object(placed, "review", review_again))


@_mutant
def repeat_what_was_said(stack: ExitStack) -> None:
    """Each plan says why a gang waits, whether or not that is news."""
    waiting = Reporter.waiting

    def waiting_again(self: Reporter, *args: Any) -> None:
        self._said.clear()
        waiting(self, *args)

    stack.enter_context(patch.object(Reporter, "waiting", waiting_again))


@_mutant
def begin_with_those_who_are_there(stack: ExitStack) -> None:
    """Ranks start on the nodes whose supervisors have joined; the others follow when they come."""
    advance = Attempt._advance

    def begin(self: Attempt) -> list[Action]:
        joined = [slot for slot in self.slots if slot.member]
        if not joined:
            return advance(self)
        self.part, self.outside = joined, [slot for slot in self.slots if not slot.member]
        return self._begin_running()

    stack.enter_context(patch.object(Attempt, "_advance", begin))


@_mutant
def charge_the_user(stack: ExitStack) -> None:
    """Whatever ended an attempt, it was the program."""
    stack.enter_context(patch.object(Verdict, "cause", property(lambda self: "user")))


@_mutant
def start_over(stack: ExitStack) -> None:
    """A restarted job begins at its first step, whatever was saved."""
    record = run_record.begin
    stack.enter_context(patch.object(run_record, "begin", lambda *args: replace(record(*args), checkpoint=None)))


@_mutant
def let_anybody_backfill(stack: ExitStack) -> None:
    """A gang without a time limit runs in front of one that waits, as if it were over in time."""
    stack.enter_context(patch.object(decide, "would_end_at", lambda gang, now: now))


@_mutant
def forget_rules_about_pods(stack: ExitStack) -> None:
    """Pods that are to be apart go wherever there is room."""
    stack.enter_context(patch.object(pod_class, "relations", lambda *args, **options: None))


@_mutant
def ask_todays_labels_for_the_launcher(stack: ExitStack) -> None:
    """Issue 11.1: the launcher is the first slot by the labels that nodes have now; a missing node sorts first."""

    def succeeded(snapshot: JobSnapshot, slots: Sequence[Slot]) -> bool:
        part = taking_part(snapshot, slots)
        if snapshot.job.spec.launcher != "mpi":
            return all(outcome._finished_well(snapshot, slot) for slot in part)
        if not any(slot.member is not None and slot.member.state == "finished" for slot in part):
            return False
        return outcome._finished_well(snapshot, run_record.rank_order(part, snapshot.nodes)[0])

    stack.enter_context(patch.object(outcome, "_succeeded", succeeded))


@_mutant
def ask_before_the_gang_fits(stack: ExitStack) -> None:
    """Issue 13: backfilled gangs are asked to leave although the reserved gang still does not fit then."""
    find = decide.make_room

    def find_or_ask(draft: Draft, gang: Gang, *args: Any, **options: Any) -> MadeRoom | None:
        made = find(draft, gang, *args, **options)
        for other in overtakers(draft.snapshot, gang) if made is None else ():
            if not (is_leaving(other) or other.writing or other.binding):
                ask_to_leave(draft, other, "Backfilled", "mutant")
        return made

    stack.enter_context(patch.object(decide, "make_room", find_or_ask))


@_mutant
def never_take_back(stack: ExitStack) -> None:
    """Issue 13: backfilled gangs keep the nodes that are reserved for a gang before them."""
    stack.enter_context(patch.object(decide, "_take_back", lambda *args: False))
    stack.enter_context(patch.object(make_room, "overtakers", lambda *args: iter(())))


@_mutant
def forget_for_whom_nodes_are_reserved(stack: ExitStack) -> None:
    """Issue 13: the Placement of a backfilled gang does not say so (`spec.backfill`)."""
    stack.enter_context(patch.object(decide, "Backfill", lambda **fields: None))


@_mutant
def charge_who_was_asked(stack: ExitStack) -> None:
    """Issue 13: an attempt that was asked to leave backfilled nodes is charged as a fault."""
    leave = give_way.give_way

    def leave_and_pay(*args: Any) -> list[Action]:
        return [_charged(action) if isinstance(action, WriteStatus) else action for action in leave(*args)]

    stack.enter_context(patch.object(give_way, "give_way", leave_and_pay))


def _charged(action: WriteStatus) -> WriteStatus:
    restarts = action.status.restarts or Restarts()
    restarts = replace(restarts, infrastructure=restarts.infrastructure + 1)
    return replace(action, status=replace(action.status, restarts=restarts))


@_mutant
def leave_without_saving(stack: ExitStack) -> None:
    """Issue 13: the ranks of a job that was asked to leave are stopped before they have saved their last step."""
    stack.enter_context(patch.object(final_checkpoint, "stop_waits", lambda *args: False))


@_mutant
def backfill_whatever_it_says(stack: ExitStack) -> None:
    """Issue 13: a job that says that it is not restartable is backfilled."""
    stack.enter_context(patch.object(Gang, "restartable", property(lambda self: True)))


@_mutant
def backfill_while_due(stack: ExitStack) -> None:
    """Issue 13: more gangs are backfilled while a gang only waits until others have run for some time."""
    stack.enter_context(patch.object(Reservations, "now_due", lambda *args: None))


@_mutant
def never_backfill(stack: ExitStack) -> None:
    """Issue 13: nodes stay idle although a restartable gang could use them."""
    stack.enter_context(patch.object(decide, "_give_until_needed", lambda *args: False))


@_mutant
def lose_the_place_in_the_queue(stack: ExitStack) -> None:
    """Issue 13: a gang that was asked to leave waits behind all that came before its new pods."""
    order = Gang.order.fget
    assert order is not None

    def newest(self: Gang) -> Any:
        place = order(self)
        if not self.times_asked or not self.current:
            return place
        return (*place[:3], max(pod.created for pod in self.current.values()), self.key)

    stack.enter_context(patch.object(Gang, "order", property(newest)))
