"""The cache of preflight. Events update it, and `decide` gets its `View` from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from muster.api.names import (
    LABEL_PREFLIGHT,
    PREFLIGHT_PENDING,
    TAINT_PREFLIGHT,
)
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.placement import Placement
from muster.api.preflight import Preflight, PreflightSpec
from muster.api.trust import GPU, Identity, has_gpus, tested_within_h
from muster.fleet.balloons.cache import Occupancy
from muster.fleet.health.decide import History, decide
from muster.fleet.health.mesh import CHECK as REACH
from muster.fleet.health.peers import UNREACHED
from muster.fleet.health.policyinuse import PolicyInUse
from muster.fleet.health.record import finding_of
from muster.fleet.nodes.node import read
from muster.fleet.preflight.config import PreflightConfig
from muster.fleet.preflight.results import read_test
from muster.fleet.preflight.snapshot import Attempts, PreflightNode, Refusal, TestView, View
from muster.fleet.preflight.suspicion import FleetFigures, suspicion
from muster.fleet.preflight.testpod import PREFIX, tolerations
from muster.fleet.remediation.ladder.exits import tested_after
from muster.fleet.remediation.ladder.record import is_quarantined, seconds
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import allocatable
from muster.kube.objects.taints import find_untolerated_taint

PENDING = Taint(key=TAINT_PREFLIGHT, value=PREFLIGHT_PENDING, effect="NoSchedule")


class _Health(msgspec.Struct, frozen=True):
    """The report of a node's agent, with the node and boot to which it belongs."""

    node_uid: str
    boot_id: str
    driver: str
    found: tuple[float, ...]


class Knowledge:
    """The cache of everything that decide needs.

    Args:
        namespace: the namespace of the tests.
        team_key: key of the taint of nodes that a team owns.
    """

    def __init__(self, namespace: str, team_key: str) -> None:
        self.figures = FleetFigures()
        self.outlying: frozenset[str] = frozenset()
        """Nodes with an outlier among their figures."""
        self.policy = PolicyInUse()
        """The policy, for the meaning of findings and the required test levels."""
        self.records: dict[str, Preflight] = {}
        self.attempts: Mapping[str, Attempts] = {}
        self.refused: Refusal | None = None
        self._namespace = namespace
        self._team_key = team_key
        self._nodes: dict[str, PreflightNode] = {}
        self._tests: dict[str, TestView] = {}
        self._health: dict[str, _Health] = {}
        self._sessions: dict[str, NodeRemediation] = {}
        self._occupancy = Occupancy()
        self._within: dict[str, int] = {}

    def view(self, config: PreflightConfig | None) -> View:
        """Return a snapshot."""
        wanted = {session.spec.node: session for session in self._sessions.values() if is_quarantined(session.status)}
        level = config.levels.suspect if config is not None else 1
        tolerated = tolerations(config if config is not None else PreflightConfig(), self._team_key)
        nodes = {name: self._node(name, node, wanted.get(name), level, tolerated) for name, node in self._nodes.items()}
        return View(
            config=config,
            nodes=nodes,
            tests=self._tests,
            attempts=self.attempts,
            refused=self.refused,
            wanted_within_h=min(self._within.values(), default=0),
        )

    def identity_of(self, name: str) -> Identity | None:
        """Return the node's identity; None if the node does not exist."""
        node = self._nodes.get(name)
        return node.identity if node is not None else None

    def _node(
        self,
        name: str,
        node: PreflightNode,
        session: NodeRemediation | None,
        suspect_level: int,
        tolerated: tuple[Toleration, ...],
    ) -> PreflightNode:
        known = self.records.get(name)
        record = known.spec if known is not None else None
        health = self._health.get(name)
        if health is not None and (health.node_uid, health.boot_id) != (node.identity.node_uid, node.identity.boot_id):
            health = None
        found = health.found if health is not None else ()
        doubtful = 0.0
        if record is not None:
            doubtful = suspicion(record, found, outlying=name in self.outlying, suspect_level=suspect_level)
        taken = self._occupancy.taken(name)
        wanted_since = _wanted_since(session, node, record)
        return msgspec.structs.replace(
            node,
            held=_held(node, tolerated),
            busy=any(amount > 0 and "/" in what for what, amount in taken.items()),
            promised=self._occupancy.promised(name),
            agent_driver=health.driver if health is not None else "",
            suspicion=doubtful,
            record=record,
            wanted_since=wanted_since,
            wanted_level=self._level(session, node) if session is not None and wanted_since is not None else 0,
            found_at=max(found, default=0.0),
        )

    def _level(self, session: NodeRemediation, node: PreflightNode) -> int:
        """Return the level that the session requires; for sessions of earlier versions, computed from their cause."""
        if session.status.test_level is not None:
            return session.status.test_level
        causes = [finding_of(each) for each in session.spec.cause]
        if not causes:
            return 0
        at = max(finding.last_s for finding in causes)
        return decide(causes, History(), self.policy.policy.of_node(node.labels), at).test

    # Event handlers; each returns whether a new plan may be needed

    def node_changed(self, old: Node | None, new: Node | None) -> bool:
        """Handle a change of a node."""
        name = (new or old).name  # type: ignore[union-attr]
        before = self._nodes.pop(name, None)
        if new is not None:
            self._nodes[name] = _read(new)
        return self._nodes.get(name) != before

    def test_changed(self, old: Pod | None, new: Pod | None) -> bool:
        """Handle a change of a test's pod."""
        name = (new or old).name  # type: ignore[union-attr]
        before = self._tests.pop(name, None)
        found = read_test(new) if new is not None else None
        if found is not None:
            self._tests[name] = found
        return found != before

    def pod_changed(self, old: Pod | None, new: Pod | None) -> bool:
        """Handle a change of any pod: it may use GPUs, or wait for recently tested nodes."""
        pod = new or old
        assert pod is not None
        if LABEL_PREFLIGHT in pod.metadata.labels and pod.namespace == self._namespace:
            return False
        waits = new is not None and not new.spec.node_name and new.metadata.deletion_timestamp is None
        before = self._within.pop(pod.uid, None)
        with suppress(ValueError):  # the scheduler reports the error in the annotation
            hours = tested_within_h(pod.metadata.annotations) if waits else 0
            if hours:
                self._within[pod.uid] = hours
        return self._occupancy.pod_changed(old, new) or self._within.get(pod.uid) != before

    def placement_changed(self, old: Placement | None, new: Placement | None) -> bool:
        """Handle a change of a Placement. Placements of the tests themselves do not count."""
        placement = new or old
        assert placement is not None
        if placement.namespace == self._namespace and placement.name.startswith(f"pod.{PREFIX}"):
            return False
        return self._occupancy.placement_changed(old, new)

    def record_changed(self, old: Preflight | None, new: Preflight | None) -> bool:
        """Handle a change of a record."""
        name = (new or old).name  # type: ignore[union-attr]
        if new is None:
            self.records.pop(name, None)
            self.figures.take(name)
        else:
            self.figures.put(name, new.spec)
            self.records[name] = lean(new)
        return True

    def health_changed(self, old: NodeHealth | None, new: NodeHealth | None) -> bool:
        """Handle a change of a NodeHealth."""
        name = (new or old).name  # type: ignore[union-attr]
        before = self._health.pop(name, None)
        if new is not None:
            status = new.status
            # Repeated reports about nodes that its agent does not reach are not evidence against this node.
            own = (each for each in status.findings if (each.check, each.code) != (REACH, UNREACHED))
            found = tuple(each.last_time.timestamp() for each in own)
            self._health[name] = _Health(status.node_uid, status.boot_id, status.driver, found)
        return self._health.get(name) != before

    def session_changed(self, old: NodeRemediation | None, new: NodeRemediation | None) -> bool:
        """Handle a change of a remediation session."""
        name = (new or old).name  # type: ignore[union-attr]
        self._sessions.pop(name, None)
        if new is not None and new.status.state != "Released":
            self._sessions[name] = new
        return True


def lean(record: Preflight) -> Preflight:
    """Return the record without its figures, which are stored separately in less memory."""
    return msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, figures=()))


def _read(node: Node) -> PreflightNode:
    pending = any(taint.key == PENDING.key and taint.effect == PENDING.effect for taint in node.spec.taints)
    amounts = allocatable(node)
    return read(
        PreflightNode,
        node,
        gpus=amounts.get(GPU, 0),
        has_gpus=has_gpus(amounts, node.metadata.labels),
        pending=pending,
    )


def _held(node: PreflightNode, tolerated: tuple[Toleration, ...]) -> str:
    """Return why no test may run on the node; "" if one may."""
    if node.leaving:
        return "is being deleted"
    if not node.ready:
        return "is not ready"
    if node.cordoned:
        return "is cordoned"
    taint = find_untolerated_taint(node.taints, tolerated)
    return f"has taint {taint.key}" if taint is not None else ""


def _wanted_since(session: NodeRemediation | None, node: PreflightNode, record: PreflightSpec | None) -> float | None:
    """Return after when a test must end to release the node (remediation/ladder/exits.py); None if not needed."""
    if session is None or session.spec.node_uid != node.identity.node_uid:
        return None
    since = tested_after(session, None)
    if record is not None and not record.passed:
        return max(since, seconds(session.status.since))  # remediation has continued since the failed test
    return since
