"""Copies facts into a session's status, because the objects that hold them may be deleted before they are needed.

- The pool of the node: breakers count the node there after it was deleted.
- When the Lease of a dead node was last renewed: the next leader knows that the node is dead.
- The level of the test that ends the quarantine: preflight reads it here, because later findings may raise it.
- Passed tests that cleared findings: the node's Preflight holds only its newest result, and may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.plan import Action, Move, Open
from muster.fleet.remediation.snapshot import Evidence, RemediationNode, View


def with_lasting_facts(view: View, actions: Iterable[Action], now: float) -> Iterator[Action]:
    """Yield the actions with these facts in each status that they write, then separate writes for the other facts."""
    written = set[str]()
    for action in actions:
        if isinstance(action, Open):
            written.add(action.session.name)
            status = _status(view, action.session, action.session.status)
            yield replace(action, session=replace(action.session, status=status))
        elif isinstance(action, Move):
            written.add(action.session.name)
            yield replace(action, status=_status(view, action.session, action.status))
        else:
            yield action
    for name in sorted((view.cleared.keys() | view.evidence.keys()) & view.nodes.keys()):
        node = view.nodes[name]
        session = view.sessions.get(remediation_name(name, node.uid))
        if remediation_name(name, node.uid) in written:
            continue
        if name in view.cleared or (session is not None and _asks_for_more(view, session)):
            yield _alone(view, node, session, now)


def _asks_for_more(view: View, session: NodeRemediation) -> bool:
    """Return whether the evidence asks for a higher test level than the session of a quarantined node has."""
    evidence = view.evidence.get(session.spec.node)
    return evidence is not None and record.is_quarantined(session.status) and evidence.test > _level(session.status)


def _level(status: NodeRemediationStatus) -> int:
    return status.test_level if status.test_level is not None else 0


def _status(view: View, session: NodeRemediation, status: NodeRemediationStatus) -> NodeRemediationStatus:
    node = view.nodes.get(session.spec.node)
    if node is None or node.uid != session.spec.node_uid:
        return status
    test = view.cleared.get(node.name)
    renewed_s = view.renewed.get(node.name) if status.state != "Released" else None
    silent_since = record.at(renewed_s) if renewed_s is not None else None
    evidence = view.evidence.get(node.name)
    level = 0 if status.state == "Released" else evidence.test if evidence is not None else status.test_level
    status = replace(status, pool=node.pool, silent_since=silent_since, test_level=level)
    return record.with_pass(status, test) if test is not None else status


def _alone(view: View, node: RemediationNode, session: NodeRemediation | None, now: float) -> Action:
    """Write the facts about a node that has no other action. The node may have no session yet."""
    if session is not None:
        status = replace(session.status, generation=session.status.generation + 1)
        return Move(session=session, status=_status(view, session, status), why="lasting facts", counts=False)
    session = record.new_session(node, Evidence(action="none"))
    message = "no remediation was needed: a passed test has cleared what was found before"
    status = NodeRemediationStatus(state="Released", generation=1, since=record.at(now), message=message)
    return Open(session=replace(session, status=_status(view, session, status)))
