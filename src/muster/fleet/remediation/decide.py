"""Decides what to do about faulty nodes: a pure function from a snapshot to a plan.

evidence ─► sessions ─► ladder (budgets, breakers, shared faults) ─► Move: the new rung is written into the session
               └──────► actions for the rung that the session already has: taint, eviction, reset, reboot, replacement

So a Move comes before the actions of its rung. For quarantine, the taint is written before the Move.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus
from muster.fleet.health.policy import RANK
from muster.fleet.remediation.draining.budgets import Room, is_unwritten
from muster.fleet.remediation.draining.drain import Leaving, leaving
from muster.fleet.remediation.evidence.shared_faults import shared_faults
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.rungs import ORDER, TARGET, WORKING
from muster.fleet.remediation.ladder.session import NOT_READY, Ladder, is_wanted
from muster.fleet.remediation.lastingfacts import with_lasting_facts
from muster.fleet.remediation.plan import (
    Action,
    Describe,
    Forget,
    ForgetStep,
    Move,
    Open,
    Plan,
    Quarantine,
    RecordEvent,
    Release,
)
from muster.fleet.remediation.snapshot import Evidence, RemediationNode, StepView, View

HARDWARE = "muster.dev/HardwareFault"
"""Condition of a node with broken hardware. Failures on this node are not charged to programs (docs/whose-fault.md)."""
PROBLEM = "muster.dev/HealthProblem"
"""Condition of a node with another problem."""
CONDITIONS = (HARDWARE, PROBLEM)
KEPT_S = 14 * 86400.0
"""How long sessions of deleted nodes are kept. The breakers, and the rules about repeated faults, still count them."""


def decide(view: View, now: float) -> Plan:
    """Return the actions for all nodes.

    Args:
        view: the state of everything at one moment.
        now: seconds since the epoch.
    """
    evidence = _evidence(view)
    view = replace(view, evidence=evidence)
    if view.config.pause:
        return Plan(held={"Paused": len(evidence)} if evidence else {})
    room = Room(view, now)
    ladder = Ladder(view, room, shared_faults(evidence, view.config.shared, now), now)
    acts = view.config.mode == "act"
    effects: list[Action] = []
    under_way = []
    for session, node in _turns(view):
        mine = evidence.get(node.name)
        if node.ignored:
            ladder.hold_count("Ignored")
        elif record.asks(session, "Quarantine"):
            _kept_out(ladder, session)
            under_way.append((session, node))
        elif not acts and not record.is_quarantined(session.status):
            _observe(ladder, effects, session, node, mine)
        elif not acts:
            if not (record.asks(session, "Release") and ladder.leaves(session, node, mine)):
                ladder.hold_count("Observing")
        elif session.status.state == "Released":
            _closed(ladder, effects, session, node, mine)
        else:
            ladder.climb(session, node, mine)
            under_way.append((session, node))
    # A session that moves now gets no other action: the actions of its new rung are in the next plan.
    moving = {action.session.name for action in ladder.actions if isinstance(action, Move) and action.counts}
    found = leaving(view, now, moving) if acts else Leaving()
    for session, node in under_way:
        if session.name not in moving:
            _note(ladder, found, session)
            effects += _effects(session, node)
    effects += [ForgetStep(name=each.name, uid=each.uid) for each in view.steps.values() if _is_done(view, each)]
    _open(ladder, evidence, acts=acts)
    _gone(ladder, now)
    if acts:
        effects += _described(view, evidence, _on_their_way_out(ladder, effects))
    return Plan(
        actions=(
            *ladder.taints,
            *with_lasting_facts(view, _with_events(view, ladder), now),
            *effects,
            *found.actions,
        ),
        kept=found.kept,
        going=frozenset(found.going),
        held=ladder.held,
        spares_for=found.wanted,
        wake_at=min((*ladder.wake, *found.wake), default=None),
    )


def _evidence(view: View) -> dict[str, Evidence]:
    """Return the evidence against existing nodes.

    Adds evidence against dead nodes, whose agents cannot report, and against nodes whose taint was written before their
    session.
    """
    found = {name: each for name, each in view.evidence.items() if name in view.nodes}
    for name, why in view.dead.items():
        known = found.get(name)
        if name in view.nodes and (known is None or RANK[known.action] < RANK["drain"]):
            found[name] = Evidence(action="drain", fault="hardware", rule="dead", why=why)
    if view.config.mode == "act":
        for name, node in view.nodes.items():
            if node.record is not None and name not in found and is_unwritten(view, node):
                found[name] = Evidence(action="quarantine", rule="record", why=node.record.why)
    return found


def _turns(view: View) -> Iterable[tuple[NodeRemediation, RemediationNode]]:
    """Return the sessions of existing nodes with their nodes: the most serious first, then the oldest fault first."""
    there = []
    for session in view.sessions.values():
        node = view.nodes.get(session.spec.node)
        if node is not None and node.uid == session.spec.node_uid:
            there.append((session, node))
    return sorted(there, key=lambda pair: _order(view.evidence.get(pair[1].name), pair[1].name))


def _order(evidence: Evidence | None, name: str) -> tuple[int, float, str]:
    return (-RANK[evidence.action] if evidence is not None else 0, evidence.first_s if evidence else 0.0, name)


def _open(ladder: Ladder, evidence: dict[str, Evidence], *, acts: bool) -> None:
    """Open sessions for nodes that have evidence against them but no session.

    The first history entry of a session is always Observe, even if the same write also enters a higher rung. Budgets
    are computed from the written history.
    """
    view = ladder.view
    for name, mine in sorted(evidence.items(), key=lambda item: _order(item[1], item[0])):
        node = view.nodes[name]
        if node.ignored or TARGET[mine.action] == "Observe":
            continue
        if remediation_name(name, node.uid) in view.sessions:
            continue
        session = record.new_session(node, mine)
        before = len(ladder.actions)
        session = replace(session, status=_opened(session, mine, ladder.now))
        if acts:
            ladder.climb(session, node, mine)
        status = session.status
        for action in ladder.actions[before:]:
            assert isinstance(action, Move)
            status = action.status
        del ladder.actions[before:]
        if not acts:
            status = record.said(status, _would(ladder, node, mine), "Observed")
        ladder.actions.append(Open(session=replace(session, status=status)))


def _opened(session: NodeRemediation, evidence: Evidence, now: float) -> NodeRemediationStatus:
    reason = f"opened: {evidence.rule or evidence.why}"
    fact = record.Fact(event="Opened", fault_key=record.fault_key(evidence))
    return record.moved(session.status, "Observe", now, reason, fact=fact, message=evidence.why)


def _closed(
    ladder: Ladder, effects: list[Action], session: NodeRemediation, node: RemediationNode, evidence: Evidence | None
) -> None:
    """Reopen a released session if there is new evidence; otherwise remove its taint if the node still has it."""
    if evidence is not None and ORDER[TARGET[evidence.action]] > ORDER["Observe"]:
        status = _opened(session, evidence, ladder.now)
        ladder.actions.append(Move(session=session, status=status, why=evidence.why))
    elif _taint_of(session, node):
        effects.append(Release(node=node, session=session.name, generation=session.status.generation))


def _taint_of(session: NodeRemediation, node: RemediationNode) -> bool:
    return node.record is not None and node.record.session == session.name


def _effects(session: NodeRemediation, node: RemediationNode) -> Iterable[Action]:
    """Yield the action that restores a missing taint of a node in quarantine, or removes one of an ended quarantine."""
    status = session.status
    entry = record.last(status, rung="Quarantine")
    if entry is None:
        yield from _leftover(session, node)
    elif not (node.quarantined and _taint_of(session, node)):
        yield Quarantine(
            node=node, session=session.name, generation=entry.generation, since=entry.time.timestamp(),
            why=entry.reason, event=entry.event or "Entered", fault_key=entry.fault_key,
        )  # fmt: skip


def _leftover(session: NodeRemediation, node: RemediationNode) -> Iterable[Action]:
    """Remove a leftover taint: the session was released and opened again, and the node still has the earlier taint.

    The reopened session may stay below Quarantine: a budget or the mode holds it there, or its new evidence asks for a
    lower rung.
    """
    if record.is_left(session, node):
        yield Release(node=node, session=session.name, generation=record.ended(session.status))


def _kept_out(ladder: Ladder, session: NodeRemediation) -> None:
    """Keep the node in quarantine because a user asked for it. Mode and budgets do not apply."""
    request, status = session.spec.request, session.status
    # If the session is on a working rung, it returns to Quarantine, without a deadline. So the drain or repair stops,
    # and the old rung's deadline no longer applies.
    working = status.state == "Open" and status.rung in WORKING
    if request is not None and (working or not record.is_quarantined(status)):
        fact = record.Fact(event="Requested", by=request.by)
        ladder.enter(session, "Quarantine", f"asked for by {request.by}: {request.reason}", fact=fact)


def _observe(
    ladder: Ladder, effects: list[Action], session: NodeRemediation, node: RemediationNode, evidence: Evidence | None
) -> None:
    """Record what would be done. The only action is to remove a taint that remained from an ended quarantine."""
    status = session.status
    if status.state == "Released":
        if evidence is not None and TARGET[evidence.action] != "Observe":
            status = _opened(session, evidence, ladder.now)
            ladder.actions.append(Move(session=session, status=status, why=evidence.why))
        elif _taint_of(session, node):
            effects.append(Release(node=node, session=session.name, generation=session.status.generation))
    elif evidence is None and not node.ready:
        ladder.hold_count(NOT_READY)
    elif evidence is None:
        released = "released: there is no evidence against the node any more"
        ladder.enter(session, "Observe", released, fact=record.RELEASED, state="Released")
    else:
        ladder.say(session, _would(ladder, node, evidence), "Observed")
    if status.state != "Released":
        effects += _leftover(session, node)


def _would(ladder: Ladder, node: RemediationNode, evidence: Evidence) -> str:
    """Return a text: what the policy asks for and, in a dry run, what Muster would do."""
    target = TARGET[evidence.action]
    text = f"{evidence.rule}: {evidence.why}: {target}"
    if ladder.view.config.mode == "observe" or ORDER[target] < ORDER["Quarantine"]:
        return f"observed only; {text}"
    if evidence.key in ladder.shared:
        return f"dry run; {text}; would need an operator: {evidence.key} is on many nodes at once"
    held, words = ladder.room.why_not_quarantine(node)
    if held:
        ladder.hold_count(held)
        return f"dry run; {text}; would not go into quarantine: {words}"
    ladder.room.take_quarantine(node)
    return f"dry run; {text}; would go into quarantine now"


def _is_done(view: View, step: StepView) -> bool:
    """Return whether a reset or reboot pod is no longer needed and must be deleted.

    If it stayed, a kubelet that comes back would still start it. A failed pod stays until the session is released,
    because its log has the reason.
    """
    session = view.sessions.get(step.session)
    if session is None or session.status.state == "Released":
        return True
    return step.phase != "Failed" and not is_wanted(session, step.name)


def _note(ladder: Ladder, found: Leaving, session: NodeRemediation) -> None:
    """Record the progress of a drain in a session that does not move."""
    status = session.status
    if status.state != "Open" or status.rung != "Drain":
        return
    spare = found.noted.get(session.name)
    if spare is not None and record.last(status, "SpareReserved") is None:
        deadline_s = record.seconds(status.deadline, ladder.now) - ladder.now
        fact = record.Fact(event="SpareReserved")
        changed = record.noted(status, ladder.now, f"spare {spare}", fact, deadline_s=deadline_s)
        ladder.actions.append(Move(session=session, status=changed, why="spare"))
    elif session.name in found.waits:
        ladder.hold(session, "Spare", found.waits[session.name])


def _gone(ladder: Ladder, now: float) -> None:
    """Release sessions of nodes that were deleted or recreated, and delete old sessions."""
    for session in ladder.view.sessions.values():
        node = ladder.view.nodes.get(session.spec.node)
        if node is not None and node.uid == session.spec.node_uid:
            continue
        if session.status.state != "Released":
            what = "is gone" if node is None else "was recreated"
            why = f"released: node {session.spec.node} {what}"
            ladder.enter(session, session.status.rung, why, fact=record.RELEASED, state="Released")
        elif now - record.seconds(session.status.since, now) > KEPT_S:
            ladder.actions.append(Forget(session=session))


def _on_their_way_out(ladder: Ladder, effects: Iterable[Action]) -> set[str]:
    """Return the nodes for which this plan opens a session or writes a taint. A later plan writes their conditions."""
    opened = {each.session.spec.node for each in ladder.actions if isinstance(each, Open)}
    return opened | {each.node.name for each in effects if isinstance(each, Quarantine)}


def _described(view: View, evidence: dict[str, Evidence], later: set[str]) -> Iterable[Action]:
    """Yield changes of Muster's conditions on nodes where they are outdated."""
    for node in view.nodes.values():
        if node.name in later:
            continue
        mine = evidence.get(node.name)
        if mine is None and not (node.ready or node.ignored):
            continue  # a node that is not ready cannot report, so missing evidence does not clear its conditions
        wanted: dict[str, str] = {}
        if mine is not None and not node.ignored and ORDER[TARGET[mine.action]] >= ORDER["Condition"]:
            wanted[HARDWARE if mine.fault == "hardware" else PROBLEM] = f"{mine.rule}: {mine.why}"[:1024]
        if wanted != node.conditions and (wanted or node.conditions):
            differs = [each for each in CONDITIONS if wanted.get(each) != node.conditions.get(each)]
            yield Describe(node=node, conditions={each: wanted.get(each) for each in differs})


def _with_events(view: View, ladder: Ladder) -> Iterable[Action]:
    """Add Events to the writes: one for each rung that a session enters, and only one for each shared fault."""
    before = {
        entry.fault_key
        for session in view.sessions.values()
        if (entry := record.last(session.status, "SharedFault")) is not None
    }
    for action in ladder.actions:
        if not isinstance(action, Open | Move) or (isinstance(action, Move) and not action.counts):
            yield action
            continue
        status = action.status if isinstance(action, Move) else action.session.status
        yield replace(action, event=_words(view, action.session.spec.node, status, before))


def _words(view: View, name: str, status: NodeRemediationStatus, before: set[str]) -> RecordEvent | None:
    if not status.history:
        return None
    entry = status.history[-1]
    if entry.event == "SharedFault":
        if entry.fault_key in before:
            return None
        before.add(entry.fault_key)
        return RecordEvent(node=None, reason="SharedFault", message=entry.reason)
    node = view.nodes.get(name)
    if node is None:
        return None
    reason = "Released" if status.state == "Released" else f"Remediation{entry.rung}"
    return RecordEvent(node=node, reason=reason, message=entry.reason, warning=status.state != "Released")
