"""Decides the next actions of an active attempt: making pods, starting ranks, and restarting after a fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from muster.api.fixed_spec import fixed
from muster.api.training_job_status import TrainingJobStatus
from muster.api.words import counted
from muster.kube.objects.pod import Pod
from muster.trainingjobs.attempts import (
    backoff,
    checkpoint_folder,
    checkpoints,
    final_checkpoint,
    growing,
    outcome,
    recovery,
    restoring,
    run_record,
    start_failures,
)
from muster.trainingjobs.attempts.backfilled import is_backfilled
from muster.trainingjobs.attempts.copy_partners import copy_warning
from muster.trainingjobs.attempts.run_directive import run_plan
from muster.trainingjobs.faults import incident
from muster.trainingjobs.faults.evidence import (
    broken,
    gone,
    node_gone,
    node_ready,
    rank_exit,
    waiting_message,
    was_replaced,
)
from muster.trainingjobs.faults.rules import Evidence, row_named, row_of
from muster.trainingjobs.plan import (
    Action,
    CreatePod,
    DeletePod,
    Direct,
    Directive,
    Reason,
    RecordEvent,
    RunPlan,
    WriteStatus,
)
from muster.trainingjobs.pods.node_use import has_other_count
from muster.trainingjobs.pods.pod import excluded_nodes
from muster.trainingjobs.pods.slots import Clock, Slot, in_contact, joined, left_out, pod_uids
from muster.trainingjobs.pods.stores import secret_names
from muster.trainingjobs.snapshot import SETTLE_S, JobSnapshot
from muster.trainingjobs.status import admission, builder

SILENCE: Final = "lost-contact"
"""The rule that excludes a node only because its supervisor is silent. Its Lease may show that it is alive."""
_LEAVING_S: Final = 60.0
"""After a fault, the next attempt waits at most this long for pods that remediation is about to evict."""
_SECRETS_S: Final = 10.0
"""Bound pods usually start within this time, unless a large image is pulled."""
_LEASE_LOOK_S: Final = 3.0
"""The interval at which Leases are read, because they are not watched."""


class Attempt:
    """Makes one decision about a job in phase Pending, Starting, Running or Restarting."""

    def __init__(self, snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> None:
        """Prepare the decision from a snapshot."""
        self.snapshot, self.slots, self.clock = snapshot, slots, clock
        self.job, self.status, self.now = snapshot.job, snapshot.job.status, clock.now
        self.running = self.status.phase == "Running"
        outside = left_out(snapshot, slots)
        self.outside = [slot for slot in slots if slot.number in outside]
        self.part = [slot for slot in slots if slot.number not in outside]
        self.fault = builder.restart_fault(self.status)
        self.broken = dict(self._broken())

    def actions(self) -> list[Action]:
        """Returns the actions to take, in order."""
        ended = outcome.finished(self.snapshot, self.slots, self.clock)
        if ended is not None:
            return ended
        begun = self._incident()
        if begun is not None:
            return begun
        late = incident.reattributed(self.snapshot, self.slots, self._late_evidence(), self.now)
        if late is not None:
            said: list[Action] = []
            if late.faults[-1] != self.status.faults[-1]:
                said.append(RecordEvent("Reattributed", _attribution(late)))
            return [self._write(late, "Reattributed"), *said]
        if self.running:
            agreed = restoring.follow(self.snapshot, self.part, self.now)
            return [self._direct(self._run_plan()), *agreed] if agreed else self._run_on()
        exhausted = builder.exhausted(self.job)
        if exhausted is not None:
            hold: list[Action] = [self._direct(None)]
            return outcome.failed(self.snapshot, exhausted, self.now) if self._settled() else hold
        return [self._direct(None), *(self._node_back() or self._make_pods()), *self._advance()]

    def _run_on(self) -> list[Action]:
        """Keeps a running attempt going: restores its record, sends its directive, and tends slots left out."""
        if run_record.in_rank_order(self.status, self.part) is None:
            record = run_record.restored(self.snapshot, self.part)
            if record is not None:
                return [self._write(replace(self.status, run=record), "Recorded")]
            if run_record.is_lost(self.status, self.part):
                return recovery.restart(
                    self.snapshot, "the status was changed: its record is not one of this attempt", self.now
                )
        if not self.outside:
            return [self._direct(self._run_plan()), *self._progress()]
        more = growing.ready(self.snapshot, self.outside, self.broken, self.now)
        grown = growing.grow(self.snapshot, more, self.now)
        if grown:
            return grown
        others = growing.tend(self.snapshot, self.outside, self.broken, self.clock)
        if self.status.last_checkpoint is not None:
            others = self._node_back() or others
        if not any(isinstance(action, WriteStatus) for action in others):
            others += self._progress()
        return [self._direct(self._run_plan(), checkpoint_now=bool(more)), *others]

    # -- faults

    def _broken(self) -> Iterator[tuple[int, Evidence]]:
        part = {slot.number for slot in self.part} if self.running else set()
        empty = any(slot.pod is None for slot in self.part)
        whole = not self.running or empty or run_record.has_its_pods(self.status, self.part)
        for slot in self.slots:
            evidence = broken(self.snapshot, slot, self.clock)
            if evidence is None and slot.number in part and (slot.pod is None or not (whole or self._runs(slot))):
                evidence = gone(slot, self.clock)
            if evidence is not None:
                yield slot.number, evidence

    def _runs(self, slot: Slot) -> bool:
        """Returns whether the attempt began with this slot's pod; also true until its supervisor has reported."""
        member = slot.member
        return member is None or (member.attempt == self.status.attempt and member.state != "idle")

    def _failures(self) -> list[Evidence]:
        """Collects failures of ranks of the running attempt.

        If a command is missing on some nodes only, those nodes are at fault.
        """
        found = (start_failures.here(slot, self.snapshot) or rank_exit(slot, self.status.attempt) for slot in self.part)
        return [each for each in found if each is not None]

    def _exits(self, attempt: int) -> list[Evidence]:
        found = (rank_exit(slot, attempt) for slot in self.slots)
        return [each for each in found if each is not None]

    def _incident(self) -> list[Action] | None:
        """End the attempt if a part of it broke.

        A pod that broke before the attempt began is replaced without a new attempt.
        """
        part = {slot.number for slot in self.part}
        if self.running:
            evidence = [each for number, each in self.broken.items() if number in part]
            start = start_failures.look(self.snapshot, self.part, self.clock)
            if start is start_failures.Found.EVERYWHERE:
                return outcome.cannot_start(
                    self.snapshot, start_failures.everywhere(self.part, self.snapshot), self.now
                )
            if start is start_failures.Found.WAIT and not evidence:
                return [self._direct(self._run_plan())]
            evidence += self._failures()
        else:
            evidence = [each for number, each in self.broken.items() if self._belongs(self.slots[number])]
        if not evidence:
            return None
        replaced = sum(1 for number, each in self.broken.items() if number in part and row_of(each).replace)
        return self._restart(evidence, replaced)

    def _restart(self, evidence: Sequence[Evidence], replaced: int) -> list[Action]:
        """End the attempt because of this evidence. Of its slots, `replaced` get another pod."""
        status, verdict = incident.restart(self.snapshot, self.slots, evidence, replaced, self.now)
        message = f"{status.faults[-1].cause}: {status.faults[-1].message}"
        return [
            self._write(status, "Restarting"),
            RecordEvent(incident.reason_of(self.job, status), message, warning=verdict.cause != "infrastructure"),
        ]

    def _belongs(self, slot: Slot) -> bool:
        """Returns whether a broken pod was made for this attempt.

        Its name is then taken, so the next attempt must replace it.
        """
        assert slot.pod is not None
        if slot.attempt < self.status.attempt:
            return False
        return bool(slot.pod.spec.node_name) or slot.pod.finished

    def _late_evidence(self) -> list[Evidence]:
        """Collects evidence about the newest fault that arrived after the decision."""
        if not self.status.faults:
            return []
        late = self._exits(self.status.faults[-1].attempt)
        if self.status.phase == "Restarting" and self.fault is not None:
            late += [
                each
                for number, each in self.broken.items()
                if self.slots[number].attempt < self.status.attempt and not self._is_our_deletion(each)
            ]
            lost = node_gone(self.snapshot, self.fault, self.clock)
            late += [lost] if lost is not None else []
            vanished = checkpoints.vanished(self.snapshot, self.part)
            late += [vanished] if vanished is not None else []
        return late

    def _is_our_deletion(self, evidence: Evidence) -> bool:
        """Returns whether the pod is being deleted only because Muster replaces it, which is not new evidence."""
        fault = self.status.faults[-1]
        replaced = evidence.slot == fault.slot and row_named(fault.rule).replace
        return row_of(evidence).id == "pod-deleted" and (replaced or self._leaves_node(self.slots[evidence.slot]))

    def _settled(self) -> bool:
        """Returns whether no more evidence about the newest fault is expected soon."""
        fault = self.status.faults[-1] if self.status.faults else None
        detected = fault.timeline.detected if fault is not None and fault.timeline is not None else None
        settled_at = detected.timestamp() + SETTLE_S if detected is not None else 0.0
        if settled_at <= self.now + SETTLE_S and not self.clock.passed(settled_at):
            return False
        looked_by = settled_at + self.job.spec.stop_grace_seconds + checkpoints.LOOK_S
        if checkpoints.is_looked_for(self.snapshot, self.part) and not self.clock.passed(looked_by):
            return False
        silent = [
            slot
            for slot in self.slots
            if slot.member is not None and slot.number not in self.broken and slot.member.silent_since is not None
        ]
        return all(in_contact(slot, self.now) for slot in silent)

    # -- pods

    def _to_replace(self, slot: Slot) -> bool:
        """Returns whether the slot needs another pod: it is broken, on an excluded node, or was given up."""
        if slot.attempt >= self.status.attempt:
            return False
        if not slot.node and slot.pod is not None and self._was_given_up(slot):
            return True  # a pod of this attempt may join again
        return slot.number in self.broken or (bool(slot.node) and self._leaves_node(slot))

    def _leaves_node(self, slot: Slot) -> bool:
        """Returns whether the next attempt must not use the slot's node: excluded, replaced, or with other GPUs."""
        return (
            slot.node in self.status.excluded_nodes
            or was_replaced(self.snapshot, slot.number, slot.node)
            or has_other_count(self.job, self.snapshot.nodes.get(slot.node))
        )

    def _was_given_up(self, slot: Slot) -> bool:
        placement = self.snapshot.placement
        return placement is not None and any(each.slot == slot.number for each in placement.spec.given_up)

    def _make_pods(self) -> list[Action]:
        attempt, excluded = self.status.attempt, self.status.excluded_nodes
        deletes: list[Action] = []
        creates: list[Action] = []
        for slot in self.slots:
            if slot.pod is None:
                creates.append(CreatePod(slot.number, attempt, excluded, "SlotEmpty"))
            elif self._to_replace(slot):
                if not slot.pod.terminating:
                    force = bool(slot.node) and not node_ready(self.snapshot.nodes.get(slot.node))
                    deletes.append(DeletePod(slot.pod.name, slot.pod.uid, "SlotBroken", force))
                creates.append(CreatePod(slot.number, attempt, excluded, "SlotBroken"))
        refusal = self.snapshot.refusal
        if creates and refusal is not None and not self.clock.passed(refusal.retry_at):
            creates = []
        if creates and self.fault is not None and self.fault.cause == "user" and self._held():
            creates = []  # such as pods that cannot start: without a pause they would be recreated in a tight loop
        return deletes + creates

    def _held(self) -> bool:
        """Returns whether a backoff holds the attempt, because the program failed several times in a row."""
        moment = backoff.begins_at(self.status)
        if moment > self.now + backoff.MOST_S:
            return False  # no controller sets a backoff this long: a user edited the status
        return not self.clock.passed(moment)

    def _leaves(self) -> bool:
        """Whether remediation is about to evict more of the job's pods. That would end a new attempt at once."""
        timeline = self.fault.timeline if self.fault is not None else None
        if not self.snapshot.leaving or timeline is None or timeline.detected is None:
            return False
        return not self.clock.passed(timeline.detected.timestamp() + _LEAVING_S)

    def _node_back(self) -> list[Action]:
        """If a replacement pod finds no other node, allow an excluded node that is Ready again.

        A node that was excluded only because its supervisor fell silent is allowed at once, if it has renewed its Lease
        since.
        """
        waiting = [
            slot.pod
            for slot in self.slots
            if slot.pod is not None and not slot.node and not slot.pod.terminating and not slot.pod.finished
        ]
        allowed = frozenset(self.status.excluded_nodes)
        stale = [pod for pod in waiting if excluded_nodes(pod) - allowed]
        if stale:
            return [DeletePod(pod.name, pod.uid, "NodeBack") for pod in stale]
        if not any(excluded_nodes(pod) for pod in waiting):
            return []
        long = self._waited_long(waiting)
        ready = {name for name in self.status.excluded_nodes if self._is_back(name)}
        back = {name for name in ready if long or (not self.running and self._was_never_lost(name))}
        if not back:
            return []
        kept = tuple(name for name in self.status.excluded_nodes if name not in back)
        status = replace(self.status, excluded_nodes=kept)
        message = f"no other node is free: {', '.join(sorted(back))} may be used again"
        return [self._write(status, "NodeBack"), RecordEvent("NodeBack", message)]

    def _waited_long(self, waiting: list[Pod]) -> bool:
        patience_s = self.snapshot.exclusion_s
        oldest = min(self.snapshot.seen.get((pod.uid, "seen"), self.now) for pod in waiting)
        return self.clock.passed(oldest + patience_s)

    def _is_back(self, name: str) -> bool:
        """Returns whether the node is Ready and has no evidence of broken hardware.

        A node that was lost would not be Ready after this time.
        """
        node = self.snapshot.nodes.get(name)
        return node_ready(node) and all(each.node != name for each in self.snapshot.hardware)

    def _was_never_lost(self, name: str) -> bool:
        """Returns whether the node was excluded only for silence and has since shown that it is alive."""
        newest = self.status.faults[-1] if self.status.faults else None
        detected = newest.timeline.detected if newest is not None and newest.timeline is not None else None
        if newest is None or detected is None or newest.rule != SILENCE:
            return False
        accused = any(fault.node == name and fault.rule != SILENCE for fault in self.status.faults)
        if accused:
            return False
        alive = self.snapshot.leases.get(name, 0.0) > detected.timestamp()
        return alive or self.clock.passed(self.now + _LEASE_LOOK_S)

    # -- advancing

    def _advance(self) -> list[Action]:
        """Record the stages reached: admitted, bound, stopped, placed, joined. Start the attempt after the last one."""
        pods = [slot.pod for slot in self.part if slot.pod is not None and not self._to_replace(slot)]
        ready = sum(1 for slot in self.part if not self._to_replace(slot) and joined(slot, self.snapshot, self.now))
        complete = len(pods) == len(self.part)
        bound = complete and all(pod.spec.node_name for pod in pods)
        if bound and ready == len(self.part) and not self._held() and not self._leaves():
            return self._begin_running()
        status = admission.with_admission(self.snapshot, self.status, complete=complete, bound=bound, now=self.now)
        same = status is self.status
        reason: Reason | None = None if same or complete else "PodsRefused"
        if status.phase == "Restarting":
            status = self._stages(status, bound)
        elif bound and status.phase == "Pending":
            status, reason = replace(status, phase="Starting", ready_slots=ready), "Starting"
        without = tuple(slot.number for slot in self.outside)
        if without != status.left_out:  # the scheduler restores a lost Placement from this
            status, reason = replace(status, left_out=without, size=len(self.part)), reason or "Waiting"
        message = builder.shortened(self._message(len(pods), ready, bound))
        news = not same or (status.ready_slots, status.message) != (ready, message)
        if news and (self.snapshot.progress_due or self._needs_secrets()):
            reason = reason or "Waiting"
        if reason is None:
            return []
        refused = reason == "PodsRefused"
        status = replace(status, ready_slots=ready, message=message, observed_generation=self.job.metadata.generation)
        actions: list[Action] = [self._write(status, reason)]
        return [*actions, RecordEvent("PodsRefused", message, warning=True)] if refused else actions

    def _stages(self, status: TrainingJobStatus, bound: bool) -> TrainingJobStatus:
        """Return the status with the stages reached and their times.

        The caller writes it together with other changes.
        """
        if self.fault is None:
            return status
        healthy = [slot for slot in self.part if slot.attempt < status.attempt and not self._to_replace(slot)]
        members = [slot.member for slot in healthy]
        if all(member is not None and member.state == "idle" for member in members):
            at = max((member.state_at for member in members if member is not None), default=self.now)
            status = builder.with_stage(status, "stopped", self._within_fault(at))
        if bound:
            pods = [slot.pod for slot in self.part if slot.pod is not None and slot.attempt == status.attempt]
            at = max((self.snapshot.seen.get((pod.uid, "bound"), self.now) for pod in pods), default=0.0)
            status = builder.with_stage(status, "placed", self._within_fault(at))
        return status

    def _within_fault(self, moment: float) -> float:
        """Return the later of this moment and the detection of the fault: a stage cannot be earlier than the fault."""
        timeline = self.status.faults[-1].timeline if self.status.faults else None
        detected = timeline.detected.timestamp() if timeline is not None and timeline.detected is not None else 0.0
        return min(max(moment, detected), self.now)

    def _message(self, created: int, ready: int, bound: bool) -> str:
        size = len(self.part)
        if self._held() and (ready == size or created < size):
            return backoff.said(self.status)
        if ready == size and self._leaves():
            return "waits until its pods have left all nodes that are drained"
        if created < size:
            refusal = self.snapshot.refusal
            return f"{created}/{size} pods created" + (f"; the next was refused: {refusal.message}" if refusal else "")
        if not bound:
            waiting = [slot.pod for slot in self.part if slot.pod is not None and not slot.node]
            word = admission.word(self.snapshot)
            conditions = (each for pod in waiting for each in pod.status.conditions if each.type == "PodScheduled")
            why = word.text if word is not None else next((each.message for each in conditions), "")
            return f"waiting for {len(waiting)} of {size} nodes" + (f": {why}" if why else "")
        starting = (waiting_message(slot.pod) for slot in self.part if slot.pod is not None and slot.member is None)
        said = next((text for text in starting if text), "") or self._needs_secrets()
        return f"{ready}/{size} nodes ready" + (f"; {said}" if said else "")

    def _needs_secrets(self) -> str:
        """Name the Secrets of a job whose pods do not start: the kubelet reports a missing one only in an Event."""
        names = secret_names(self.job.spec)
        waiting = [slot.pod for slot in self.part if slot.pod is not None and slot.pod.status.phase == "Pending"]
        if not names or not waiting:
            return ""
        first = min(waiting, key=lambda pod: self.snapshot.seen.get((pod.uid, "bound"), self.now))
        if not self.clock.passed(self.snapshot.seen.get((first.uid, "bound"), self.now) + _SECRETS_S):
            return ""
        named = f"Secret {names[0]}" if len(names) == 1 else f"Secrets {' and '.join(names)}"
        return f"pods need {named}; if that is missing, create it (kubectl describe pod {first.name} shows it)"

    def _cannot_write(self, refusal: checkpoint_folder.Refusal) -> list[Action]:
        """Keep an attempt from starting on nodes that cannot write to the checkpoint folder."""
        if refusal.everywhere:
            return outcome.cannot_start(self.snapshot, refusal.evidence[0], self.now)
        return self._restart(refusal.evidence, len(refusal.evidence))

    def _begin_running(self) -> list[Action]:
        refusal = checkpoint_folder.refused(self.snapshot, self.part)
        if refusal is not None and not refusal.tolerated:
            return self._cannot_write(refusal)
        choice = checkpoints.choose(self.snapshot, self.part)
        if choice.problem:
            return outcome.not_found(self.snapshot, choice.problem, self.now)
        if choice.bad:
            return outcome.checkpoints_bad(self.snapshot, choice.bad, self.now)
        status = admission.with_admission(self.snapshot, choice.status, complete=True, bound=True, now=self.now)
        if status.phase == "Restarting" and self.fault is not None:
            status = self._stages(status, bound=True)
            pause_end = backoff.begins_at(status)
            if pause_end and self._within_fault(pause_end) == pause_end:  # a stage of an earlier restart does not count
                status = builder.with_stage(status, "backoff", pause_end)
            for stage in ("ready", "running"):
                status = builder.with_stage(status, stage, self.now)
        status = self._kept(status)
        size, wanted = len(self.part), len(self.slots)
        nodes = counted(size, "node") if size == wanted else f"{size} of {wanted} nodes: there is no spare node"
        message = f"attempt {status.attempt} runs on {nodes}"
        if choice.event is not None:
            message += f"; {choice.event.message}"
        status = builder.with_condition(
            status, "Running", True, "Running", message, self.now, self.job.metadata.generation
        )
        status = replace(
            status,
            phase="Running",
            ran_attempt=status.attempt,
            ready_slots=size,
            size=size,
            left_out=tuple(slot.number for slot in self.outside),
            run=run_record.begin(self.snapshot, self.part, choice.status.last_checkpoint),
            message=message,
            start_time=status.start_time or builder.at(self.now),
            observed_generation=self.job.metadata.generation,
        )
        reason: Reason = "Running" if size == wanted else "Shrunk"
        others = checkpoints.of_others(status, self.snapshot, self.part)
        unwritable = checkpoint_folder.event(refusal) if refusal is not None else None
        near = copy_warning(self.job, status.run, run_record.domains(self.snapshot, self.part))
        said = [RecordEvent(reason, message, warning=size < wanted), choice.event, others, unwritable, near]
        return [self._write(status, "Running"), *(each for each in said if each is not None)]

    def _kept(self, status: TrainingJobStatus) -> TrainingJobStatus:
        """Return the status with the final cost of the restart: late evidence may have replaced more slots."""
        if status.phase != "Restarting" or self.fault is None:
            return status
        kept = sum(1 for slot in self.part if slot.attempt < status.attempt)
        newest = replace(status.faults[-1], slots=len(self.part) - kept)
        return replace(builder.with_newest_fault(status, newest), slots_kept=kept)

    def _run_plan(self) -> RunPlan | None:
        """Return the run plan when every supervisor is known. The shell then keeps it for the attempt."""
        return run_plan(self.snapshot, self.part)

    def _progress(self) -> list[Action]:
        """Write progress when it is due. The first useful step after a fault is written at once."""
        progress = self.snapshot.progress
        if progress is None or progress == self.status.progress:
            return []
        useful = outcome.useful(self.status, progress, self.now)
        if useful is not None:
            return [self._write(useful, "Useful"), RecordEvent("Useful", useful.message)]
        if not self.snapshot.progress_due:
            return []
        return [self._write(replace(self.status, progress=progress), "Progress")]

    # -- shared

    def _write(self, status: TrainingJobStatus, reason: Reason) -> WriteStatus:
        if status.fixed_spec is None:  # the job became active under an earlier version
            status = replace(status, fixed_spec=fixed(self.job.spec))
        return WriteStatus(builder.fitted(status), reason)

    def _direct(self, run: RunPlan | None, *, checkpoint_now: bool = False) -> Direct:
        return Direct(
            Directive(
                attempt=self.status.attempt,
                desired="run" if self.running else "hold",
                grace_s=self.job.spec.stop_grace_seconds,
                run=run,
                slots=pod_uids(self.slots),
                look=() if self.running else checkpoints.to_look_at(self.status),
                checkpoint_now=checkpoint_now
                or (self.running and final_checkpoint.asks(self.snapshot, self.slots, self.clock)),
                backfilled=is_backfilled(self.status),
            )
        )


def _attribution(status: TrainingJobStatus) -> str:
    fault = status.faults[-1]
    return f"the end of attempt {fault.attempt} is charged to {fault.cause} now ({fault.rule}): {fault.message}"
