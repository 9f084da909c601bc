"""Lists all nodes with one state each.

If several states apply, it lists one that keeps the node from work rather than one that says how the node is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from muster.api.names import TAINT_PREFLIGHT, remediation_name
from muster.api.node_remediation import NodeRemediation
from muster.api.preflight import Preflight
from muster.api.quarantine import quarantined
from muster.api.trust import GPU, Doubt, doubt, identity, needs_test, tested
from muster.fleet.joins.record import is_held
from muster.fleet.remediation.ladder.states import NodeCare, state_of
from muster.kube.objects.node import Node
from muster.kube.objects.quantity import to_int
from muster.kube.objects.taints import HARD_EFFECTS
from muster.teams.cache import Holdings
from muster.teams.poolstate import Held
from muster.teams.usage import Rank

_IN_USE = frozenset({NodeCare.NONE, NodeCare.OBSERVED, NodeCare.SUSPECT})
_TESTED_NEXT = frozenset({"Untested", NodeCare.QUARANTINED, NodeCare.TESTING})
_BY_RANK = {Rank.BUSY: "InUse", Rank.BORROWED: "Lent", Rank.IDLE: "Idle"}


class NodeLine(msgspec.Struct, frozen=True, rename="camel"):
    """One node.

    Attributes:
        state: the most important one. Values are for scripts: never rename one.
        since: when the state began, if that is recorded.
        test_level, test_time: of the newest test that the node passed and that is still valid.
        why: the present action, or the reason of the state.
    """

    node: str
    state: str
    since: datetime | None
    pool: str
    team: str
    gpus: int
    test_level: int | None
    test_time: datetime | None
    why: str


def node_lines(
    holdings: Holdings,
    sessions: Mapping[str, NodeRemediation],
    preflights: Mapping[str, Preflight],
    waits: Mapping[str, str],
) -> Iterator[NodeLine]:
    """Yield all nodes by name.

    Args:
        holdings: nodes, with their pods and slots.
        sessions: NodeRemediations by name.
        preflights: the newest tests, by node; empty if tests are off.
        waits: by node, what its test does or waits for.
    """
    for name, held in sorted(holdings.nodes.items()):
        session = sessions.get(remediation_name(name, held.node.uid))
        yield _line(held, session, preflights.get(name), waits.get(name, ""), tests=bool(preflights))


def _line(
    held: Held, session: NodeRemediation | None, preflight: Preflight | None, waits: str, *, tests: bool
) -> NodeLine:
    node = held.node
    record = tested(preflight.spec) if preflight is not None else None
    doubts = doubt(identity(node), record) if needs_test(node) else Doubt.NONE
    state, since, why = _state(held, session, doubts if tests or is_pending(node) else Doubt.NONE)
    good = preflight.spec if preflight is not None and doubts is Doubt.NONE and preflight.spec.passed else None
    return NodeLine(
        node=node.name,
        state=state,
        since=since,
        pool=held.pool.name if held.pool is not None else "",
        team=held.owner,
        gpus=to_int(node.status.allocatable.get(GPU, 0)),
        test_level=good.level if good is not None else None,
        test_time=good.time if good is not None else None,
        why="; ".join(filter(None, (why, waits if state in _TESTED_NEXT else ""))),
    )


def _state(held: Held, session: NodeRemediation | None, doubts: Doubt) -> tuple[str, datetime | None, str]:
    node, care = held.node, state_of(session)
    if node.metadata.deletion_timestamp is not None:
        return "Deleting", node.metadata.deletion_timestamp, ""
    if session is not None and care not in _IN_USE:
        return care.value, session.status.since, session.status.message
    if not node.ready:
        ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
        return ("NotReady", ready.last_transition_time, ready.message) if ready else ("NotReady", None, "")
    if quarantined(node):
        return "Quarantined", None, "the taint was set by hand"
    if is_held(node):
        return "Joining", None, ""
    if node.spec.unschedulable:
        return "Cordoned", None, ""
    if doubts is not Doubt.NONE:
        return "Untested", None, doubts.value
    if session is not None and care is NodeCare.SUSPECT:
        return care.value, session.status.since, session.status.message
    return _BY_RANK[held.rank], None, ""


def is_pending(node: Node) -> bool:
    """Returns whether the node has the taint of nodes that wait for a test."""
    return any(taint.key == TAINT_PREFLIGHT and taint.effect in HARD_EFFECTS for taint in node.spec.taints)
