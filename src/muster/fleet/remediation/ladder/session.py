"""Decides one session's next step: the rung to enter, what to do on it, and what it waits for.

Each step is written before it is executed, and the action is derived from what was written. So any controller that
reads the object can continue. Only the taint is written first, because the record beside it on the node is read too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.api.node_remediation import (
    HeldBy,
    NodeRemediation,
    NodeRemediationStatus,
    RemediationState,
    Rung,
    StepEvent,
)
from muster.fleet.remediation.draining.budgets import NOTHING_HOLDS, Room
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.exits import failed, is_being_replaced, is_booted, is_own, passed
from muster.fleet.remediation.ladder.rungs import MACHINE, ORDER, TARGET, WORKING, further, is_above
from muster.fleet.remediation.ladder.states import NodeCare, state_of
from muster.fleet.remediation.plan import Action, Move, Quarantine, ReplaceMachine, RunStep
from muster.fleet.remediation.snapshot import Evidence, RemediationNode, StepView, View

NOT_READY = "NotReady"
"""Rule for nodes that cannot report. Missing evidence does not clear such a node, because the nodes that reported it
may be gone."""
STEP_OF: dict[Rung, str] = {"ResetGPU": "reset", "Reboot": "reboot"}


def step_name(session: NodeRemediation, rung: Rung) -> str:
    """Return the name of the rung's pod: the same name at every retry."""
    entry = record.first_on(session.status, rung)
    generation = entry.generation if entry is not None else session.status.generation
    return f"muster-{STEP_OF[rung]}-{session.spec.node_uid[:8]}-{generation}"


def is_wanted(session: NodeRemediation, name: str) -> bool:
    """Return whether the session now asks for the pod of that name: its step is not done and was not stopped."""
    status = session.status
    if status.state != "Open" or status.rung not in STEP_OF or record.asks(session, "Quarantine"):
        return False
    return step_name(session, status.rung) == name and state_of(session) is not NodeCare.TESTING


@dataclass(slots=True)
class Ladder:
    """Decides the next step of each session, and collects the writes.

    Attributes:
        view: the state of everything.
        room: what budgets and breakers leave.
        shared: by CHECK/CODE, how many nodes have the fault at once.
        now: seconds since the epoch.
        actions: the writes to make.
        taints: the writes to make before them.
        held: by reason, how many nodes are held back.
        wake: moments at which to plan again.
    """

    view: View
    room: Room
    shared: dict[str, int]
    now: float
    actions: list[Action] = field(default_factory=list)
    taints: list[Action] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    wake: list[float] = field(default_factory=list)

    def climb(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        """Advance one session that is open or needs an operator."""
        status = session.status
        if not record.is_quarantined(status):
            self._below(session, node, evidence)
            return
        if self.leaves(session, node, evidence):
            return
        if status.state == "NeedsOperator":
            return
        elif evidence is not None and status.rung in ("Quarantine", "Drain") and evidence.key in self.shared:
            self._hand_shared(session, evidence)
        elif status.rung in MACHINE and node.cordoned:
            self.enter(
                session,
                "Human",
                "the node was cordoned by another user or tool: Muster leaves its machine alone",
                state="NeedsOperator",
            )
        elif failed(session, node, self.view.tested.get(node.name)):
            self._further(session, node, evidence, "its test failed")
        elif self._is_late(status):
            self._too_late(session, node, evidence)
        else:
            self._on_rung(session, node, evidence)

    def leaves(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> bool:
        """Release the session if the node has passed the test that ends its quarantine. Returns whether that is so."""
        if self._is_let_back(session, node, evidence):
            return True
        tested = self.view.tested.get(node.name)
        if tested is None or not passed(session, node, tested, evidence):
            return False
        self._release(session, *record.released_after(tested.level, tested.time_s))
        return True

    def _is_let_back(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> bool:
        """Release a node without GPUs, which has no test, if a user asked for that after the newest evidence."""
        request, tested = session.spec.request, self.view.tested.get(node.name)
        if request is None or request.action != "Release" or not node.ready or is_being_replaced(session):
            return False
        # A tested or labelled node does have GPUs: for a while after a boot, its kubelet reports 0.
        if node.gpus or node.has_gpus or (tested is not None and tested.node_uid == node.uid):
            return False
        opened = record.episode(session.status)[0].time.timestamp()
        if request.time.timestamp() <= max(opened, evidence.last_s if evidence is not None else 0.0):
            return False  # the request is older than the evidence
        text = f"released: asked for by {request.by}: {request.reason}"
        self._release(session, text, record.Fact(event="Released", by=request.by))
        return True

    # Below quarantine: the node is in use

    def _below(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        status = session.status
        if record.is_put(session, node):
            self._is_out(session, node, evidence)
            return
        if evidence is None:
            if node.ready:
                self._release(session, "released: no evidence against the node counts any more")
            else:
                self.hold_count(NOT_READY)
            return
        want, why = TARGET[evidence.action], _because(evidence)
        if ORDER[want] < ORDER["Quarantine"]:
            if status.rung != want or status.state != "Open":
                self.enter(session, want, why, fact=_fact(evidence))
            return
        if status.state == "NeedsOperator":
            shared = record.last(status, "SharedFault")
            if shared is None or shared.fault_key == evidence.key or evidence.key in self.shared:
                return
        if evidence.key in self.shared:
            self._hand_shared(session, evidence)
            return
        held, words = self.room.why_not_quarantine(node)
        if held:
            self.hold(session, held, f"{why}; not in quarantine: {words}", rung="Condition")
            return
        self.room.take_quarantine(node)
        self._quarantine(session, node, evidence)

    def _quarantine(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence) -> None:
        """Put the node into quarantine. The taint is written first: one harmless write, which names its session."""
        generation = session.status.generation + 1
        event: StepEvent = "Joining" if node.joining else "Entered"
        why = f"joining: {_because(evidence)}" if node.joining else _because(evidence)
        taint = Quarantine(
            node=node, session=session.name, generation=generation, since=self.now, why=why, event=event,
            fault_key=record.fault_key(evidence),
        )  # fmt: skip
        self.taints.append(taint)
        fact = record.Fact(event=event, fault_key=taint.fault_key)
        self.enter(session, "Quarantine", why, fact=fact, deadline_s=self.view.config.deadlines.quarantine_s)

    def _is_out(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        """Record that the taint is there. If no budget holds the drain back, record the drain in the same write."""
        deadline_s = self.view.config.deadlines.quarantine_s
        mark = node.record
        assert mark is not None
        assert mark.event is not None
        why, fact = mark.why, record.Fact(event=mark.event, fault_key=mark.fault_key)
        status = record.moved(session.status, "Quarantine", self.now, why, fact=fact, deadline_s=deadline_s)
        drains = (
            evidence is not None
            and evidence.key not in self.shared
            and is_above(TARGET[evidence.action], "Quarantine")
            and self.room.why_not_work(node) == NOTHING_HOLDS
        )
        if evidence is not None and drains:
            self.room.take_work(node)
            why = _because(evidence)
            status = record.moved(
                status, "Drain", self.now, why, fact=_fact(evidence), deadline_s=self._deadline_s("Drain")
            )
        self.actions.append(Move(session=session, status=status, why=why))

    def _hand_shared(self, session: NodeRemediation, evidence: Evidence) -> None:
        window_s = self.view.config.shared.window_s
        text = (
            f"at least {self.view.config.shared.nodes} nodes got it within {window_s:g} s, so the cause is outside of "
            "the nodes"
        )
        self.hold_count("shared")
        fact = record.Fact(event="SharedFault", fault_key=evidence.key)
        self.enter(session, "Human", f"shared {evidence.key}: {text}", fact=fact, state="NeedsOperator")

    # In quarantine

    def _on_rung(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        rung = session.status.rung
        want = TARGET[evidence.action] if evidence is not None else rung
        if rung in MACHINE and not node.quarantined:
            return  # the taint was removed: it is restored first, because new pods may come until then
        if rung == "Quarantine":
            if is_above(want, rung) and node.quarantined:  # without the taint, evicted pods could come back
                self.enter_work(session, node, "Drain", evidence, _because(evidence))
        elif rung == "Drain":
            self._drain(session, node, evidence, want)
        elif rung == "ResetGPU":
            self._reset(session, node, evidence)
        elif rung == "Reboot":
            self._reboot(session, node)
        elif rung == "Replace":
            self._replace(session, node, evidence)

    def _drain(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None, want: Rung) -> None:
        pods = self.view.pods.get(node.name)
        dead = node.name in self.view.dead
        if pods is None:
            return  # the pods have not been listed yet
        hopeless = next((pod for pod in pods if pod.hopeless), None)
        if hopeless is not None:
            text = f"pod {hopeless.namespace}/{hopeless.name} cannot be evicted: {hopeless.refused}"
            self.enter(session, "Human", text, state="NeedsOperator")
            return
        if any(not (dead and pod.terminating) for pod in pods):
            return  # `draining/drain.py` decides which of them are evicted now
        status = session.status
        if record.last(status, "Emptied") is None:
            changed = record.noted(
                status, self.now, "empty", record.Fact(event="Emptied"), deadline_s=self.view.config.deadlines.test_s,
                message="the node is empty",
            )  # fmt: skip
            self.actions.append(Move(session=session, status=changed, why="empty"))
        elif is_above(want, "Drain"):
            self._to(session, node, want, evidence, _because(evidence))
        elif dead:
            self._further(session, node, evidence, "the node has been silent since")

    def _reset(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        status, step = session.status, self._step(session)
        if record.last(status, "Reset") is not None:
            return  # its test decides
        if step is None:
            name = step_name(session, "ResetGPU")
            boot, gpus = node.boot_id, _gpus(evidence)
            self.actions.append(
                RunStep(name=name, node=node, session=session.name, step="reset", boot_id=boot, gpus=gpus)
            )
        elif step.phase == "Succeeded":
            changed = record.noted(
                status, self.now, "reset", record.Fact(event="Reset"), deadline_s=self.view.config.deadlines.test_s,
                message="the GPUs were reset; the node is tested",
            )  # fmt: skip
            self.actions.append(Move(session=session, status=changed, why="reset"))
        elif step.phase == "Failed":
            self._further(session, node, evidence, "the GPUs could not be reset")

    def _reboot(self, session: NodeRemediation, node: RemediationNode) -> None:
        status, step = session.status, self._step(session)
        asked = record.last(status, "RebootRequested")
        if asked is None:
            fact = record.Fact(event="RebootRequested", boot_id=node.boot_id)
            changed = record.noted(
                status, self.now, f"boot {node.boot_id}", fact, message="the machine is rebooted",
                deadline_s=self.view.config.deadlines.reboot_s,
            )  # fmt: skip
            self.actions.append(Move(session=session, status=changed, why="boot"))
        elif is_booted(session):
            return  # its test decides
        elif node.boot_id != asked.boot_id:
            changed = record.noted(
                status, self.now, "booted", record.Fact(event="Booted"), deadline_s=self.view.config.deadlines.test_s,
                message="the machine has booted; the node is tested",
            )  # fmt: skip
            self.actions.append(Move(session=session, status=changed, why="booted"))
        elif step is None:
            name, boot = step_name(session, "Reboot"), node.boot_id
            self.actions.append(RunStep(name=name, node=node, session=session.name, step="reboot", boot_id=boot))

    def _replace(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        """Record the request first: it may take effect long after it was sent, and the node must stay out of use."""
        status = session.status
        if is_being_replaced(session):
            self.actions.append(ReplaceMachine(node=node, session=session.name, generation=status.generation))
        elif evidence is None and node.ready and self._passed_last(node):
            self.hold(session, "Passed", "it is not replaced, because it passed its newest test; it is tested again")
        else:
            changed = record.noted(
                status, self.now, "replace", record.Fact(event="ReplaceRequested"), message="the machine is replaced",
                deadline_s=self.view.config.deadlines.replace_s,
            )  # fmt: skip
            self.actions.append(Move(session=session, status=changed, why="replace"))

    def _step(self, session: NodeRemediation) -> StepView | None:
        step = self.view.steps.get(step_name(session, session.status.rung))
        # Among thousands of nodes, two UIDs may begin with the same characters.
        return step if step is not None and step.session == session.name else None

    def _passed_last(self, node: RemediationNode) -> bool:
        """Return whether the newest test passed, even if it was too early to release the node.

        The machine is then not replaced.
        """
        tested = self.view.tested.get(node.name)
        return tested is not None and tested.passed and is_own(tested, node)

    # Moves

    def _too_late(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None) -> None:
        """Handle a deadline: go to the next rung. If only the test is missing, hand the node to an operator."""
        rung = session.status.rung
        if state_of(session) is NodeCare.TESTING:
            self.enter(session, "Human", f"after {rung} the node was not tested in time", state="NeedsOperator")
        else:
            self._further(session, node, evidence, f"{rung} was not done in time")

    def _further(self, session: NodeRemediation, node: RemediationNode, evidence: Evidence | None, why: str) -> None:
        """Enter the rung after the failed one, or the rung that the evidence asks for if that is higher."""
        status = session.status
        if status.rung == "Drain" and record.last(status, "Emptied") is None:
            self.enter(session, "Human", f"{why}: pods do not leave the node", state="NeedsOperator")
            return
        following = self._after(status.rung, node)
        want = TARGET[evidence.action] if evidence is not None else following
        if is_above(want, following) and status.rung != "Quarantine":
            following = want
        self._to(session, node, following, evidence, why)

    def _back_by(self, session: NodeRemediation, node: RemediationNode) -> float:
        """Return until when a silent node may still be booting: now, if it is not silent or must be replaced."""
        evidence = self.view.evidence.get(node.name)
        asked = evidence is not None and TARGET[evidence.action] == "Replace"
        if asked or (node.ready and node.name not in self.view.dead):
            return self.now
        return record.seconds(session.status.since, self.now) + self.view.config.deadlines.reboot_s

    def _after(self, rung: Rung, node: RemediationNode) -> Rung:
        alive = node.ready and node.name not in self.view.dead
        return further(rung, gpus=node.gpus > 0, alive=alive, replaceable=node.name in self.view.replaceable)

    def _to(
        self, session: NodeRemediation, node: RemediationNode, rung: Rung, evidence: Evidence | None, why: str
    ) -> None:
        if rung in STEP_OF and is_above(self._after("Drain", node), rung):
            rung = self._after("Drain", node)  # the node cannot be reset or rebooted
        due = self._back_by(session, node) if rung == "Replace" else self.now
        if self.now < due:
            self.wake.append(due)
            self.hold(session, "Silent", f"{why}; it is not replaced before it has had time to boot")
            return
        if rung in MACHINE and node.cordoned:
            self.enter(session, "Human", f"{why}; the node was cordoned by another user or tool", state="NeedsOperator")
        elif rung == "Replace" and node.name not in self.view.replaceable:
            self.enter(session, "Human", f"{why}; no provider here can replace the machine", state="NeedsOperator")
        elif rung == "Human":
            self.enter(session, "Human", why, state="NeedsOperator")
        elif session.status.rung not in WORKING:
            self.enter_work(session, node, rung, evidence, why)
        else:
            self.enter(session, rung, why, fact=_fact(evidence), deadline_s=self._deadline_s(rung))

    def enter_work(
        self, session: NodeRemediation, node: RemediationNode, rung: Rung, evidence: Evidence | None, why: str
    ) -> None:
        """Enter a rung that works on the node, if the budget allows one more."""
        held, words = self.room.why_not_work(node)
        if held:
            self.hold(session, held, f"{why}; in quarantine, {rung} waits: {words}")
            return
        self.room.take_work(node)
        self.enter(session, rung, why, fact=_fact(evidence), deadline_s=self._deadline_s(rung))

    def enter(
        self,
        session: NodeRemediation,
        rung: Rung,
        why: str,
        *,
        fact: record.Fact = record.ENTERED,
        deadline_s: float | None = None,
        state: RemediationState = "Open",
        message: str = "",
        held_by: HeldBy | None = None,
    ) -> None:
        """Record that the session enters a rung."""
        status = record.moved(
            session.status,
            rung,
            self.now,
            why,
            fact=fact,
            deadline_s=deadline_s,
            state=state,
            message=message,
            held_by=held_by,
        )
        self.actions.append(Move(session=session, status=status, why=why))

    def hold(self, session: NodeRemediation, kind: HeldBy, message: str, rung: Rung | None = None) -> None:
        """Record why nothing is done for now."""
        self.hold_count(kind)
        if rung is not None and session.status.rung != rung:
            self.enter(session, rung, kind, message=message, held_by=kind)
        else:
            self.say(session, message, kind)

    def say(self, session: NodeRemediation, message: str, kind: HeldBy) -> None:
        """Record what delays the session, if the limit or the shortened message has changed."""
        before, status = session.status, record.said(session.status, message, kind)
        if (status.message, status.held_by) != (before.message, before.held_by):
            self.actions.append(Move(session=session, status=status, why=kind, counts=False))

    def hold_count(self, kind: str) -> None:
        """Count one more node that is held back."""
        self.held[kind] = self.held.get(kind, 0) + 1

    def _release(self, session: NodeRemediation, why: str, fact: record.Fact = record.RELEASED) -> None:
        self.enter(session, session.status.rung, why, fact=fact, state="Released")

    def _deadline_s(self, rung: Rung) -> float:
        deadlines = self.view.config.deadlines
        return {
            "Drain": deadlines.drain_s,
            "ResetGPU": deadlines.reset_s,
            "Reboot": deadlines.reboot_s,
            "Replace": deadlines.replace_s,
        }[rung]

    def _is_late(self, status: NodeRemediationStatus) -> bool:
        if status.deadline is None:
            return False
        due = status.deadline.timestamp()
        if self.now < due:
            self.wake.append(due)
        return self.now >= due


def _because(evidence: Evidence | None) -> str:
    if evidence is None:
        return ""
    return f"{evidence.rule}: {evidence.why}" if evidence.rule else evidence.why


def _fact(evidence: Evidence | None) -> record.Fact:
    """Return the fact of an entry that enters a rung because of this evidence."""
    return record.Fact(fault_key=record.fault_key(evidence)) if evidence is not None else record.ENTERED


def _gpus(evidence: Evidence | None) -> tuple[str, ...]:
    """Return the GPUs that the findings name, by UUID or PCI address; empty for all GPUs of the node."""
    parts = {each.component for each in evidence.findings} if evidence is not None else set()
    return tuple(sorted(part for part in parts if part.startswith("GPU-") or part.count(":") == 2))
