"""The cache of remediation: objects from informers, and our own writes that the watches have not reported yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from muster.api.names import LABEL_POOL, LABEL_TEAM, TAINT_JOINING, TAINT_PREFLIGHT, remediation_name
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.placement import Placement
from muster.api.preflight import PassedTest, Preflight
from muster.api.quarantine import quarantined
from muster.api.trimmed import trimmed_node
from muster.api.trust import GPU, has_gpus
from muster.fleet.health.finding import Finding
from muster.fleet.health.mesh import Report, report_of
from muster.fleet.health.policy import Policy
from muster.fleet.health.record import finding_of
from muster.fleet.nodes.node import read
from muster.fleet.remediation.decide import CONDITIONS
from muster.fleet.remediation.evidence.dead_nodes import unreached
from muster.fleet.remediation.evidence.sources import evidence_of, judged, tested_of
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.repairs.steps import view_of
from muster.fleet.remediation.snapshot import Evidence, RemediationNode, StepView, Tested
from muster.fleet.scaling.node_views import placement_keeps
from muster.kube.objects.meta import is_later
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.quantity import QuantityError, to_int
from muster.kube.objects.taints import HARD_EFFECTS

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_OURS = frozenset({TAINT_PREFLIGHT, TAINT_JOINING, UNSCHEDULABLE})


def _what(mesh: dict[str, Finding], name: str) -> tuple[str, str, str] | None:
    finding = mesh.get(name)
    return finding.key if finding is not None else None


def node_view(node: Node, *, trusted: bool, team_key: str = LABEL_TEAM) -> RemediationNode:
    """Return the node in the form that `decide` uses.

    Args:
        node: the node, which may be trimmed.
        trusted: it has passed its tests once; until then it counts as joining.
        team_key: label that names the team.
    """
    labels = node.metadata.labels
    hard = {taint.key for taint in node.spec.taints if taint.effect in HARD_EFFECTS}
    conditions = {each.type: each.message for each in node.status.conditions if each.status == "True"}
    return read(
        RemediationNode,
        node,
        pool=labels.get(LABEL_POOL, ""),
        team=labels.get(team_key, ""),
        joining=TAINT_JOINING in hard or (TAINT_PREFLIGHT in hard and not trusted),
        pending=TAINT_PREFLIGHT in hard,
        record=record.record_of(node) if quarantined(node) else None,
        gpus=_gpus(node),
        has_gpus=has_gpus({}, labels),
        keeps_away=frozenset(hard - _OURS - {record.QUARANTINE.key, team_key}),
        conditions={type_: conditions[type_] for type_ in CONDITIONS if type_ in conditions},
    )


def _gpus(node: Node) -> int:
    try:
        status = node.status
        return to_int(status.capacity.get(GPU, status.allocatable.get(GPU, 0)))
    except QuantityError:
        return 0


class Known:
    """The cache, updated by handlers of informers. It calls `changed` if a plan might change.

    Args:
        changed: called without arguments.
        team_key: label that names a node's team.
    """

    def __init__(self, changed: Callable[[], None], team_key: str = LABEL_TEAM) -> None:
        self._changed = changed
        self._team_key = team_key
        self.raw: dict[str, Node] = {}
        self.nodes: dict[str, RemediationNode] = {}
        self.sessions: dict[str, NodeRemediation] = {}
        self.tested: dict[str, Tested] = {}
        self.gangs: dict[str, frozenset[str]] = {}
        self.steps: dict[str, StepView] = {}
        self.evidence: dict[str, Evidence] = {}
        self.cleared: dict[str, PassedTest] = {}
        self.reports: dict[str, dict[str, float]] = {}
        self._said: dict[str, Report] = {}
        self.news_count = 0
        """Increased whenever an agent or a test reports something new."""
        self._health: dict[str, NodeHealth] = {}
        self._preflights: dict[str, Preflight] = {}
        self._slots: dict[str, frozenset[str]] = {}
        self._stale: set[str] = set()
        self._due: dict[str, float] = {}
        self._joined: set[str] = set()
        """UIDs of nodes that had a test record: they are or were in use."""
        self._mesh: dict[str, Finding] = {}

    @property
    def said(self) -> dict[str, Report]:
        """The reports of agents about nodes that exist, by reporting node."""
        return {name: self._of_these(name, each) if each.unreached else each for name, each in self._said.items()}

    def _of_these(self, reporter: str, report: Report) -> Report:
        own = self._about_these(finding_of(each) for each in self._health[reporter].status.findings)
        return replace(report, unreached=report.unreached & {each.component for each in own})

    def _about_these(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Yield the findings that are newer than the named node: older ones are about an earlier node of that name."""
        for each in findings:
            other = self.raw.get(each.component)
            # The creation time has whole seconds: within the same second, the finding may be about the earlier node.
            if other is None or each.last_s >= record.seconds(other.metadata.creation_timestamp) + 1.0:
                yield each

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a node."""
        if new is None:
            assert old is not None
            self.raw.pop(old.name, None)
            self._joined.discard(old.uid)
            self.nodes.pop(old.name, None)
            self._stale.add(old.name)
            self._changed()
            return
        before = self.raw.get(new.name)
        if before is None or before.uid != new.uid or not is_later(before, new):
            if before is None or before.uid != new.uid:
                self._stale |= {name for name, unreached in self.reports.items() if new.name in unreached}
                self._mesh.pop(new.name, None)  # evaluated again shortly
            self.raw[new.name] = new
            self._view(new.name)

    def node_written(self, node: Node) -> None:
        """Apply the API server's answer to a write, because the watch may deliver it later."""
        if node.name in self.raw:
            self.node_changed(None, trimmed_node(node))

    def health_changed(self, old: NodeHealth | None, new: NodeHealth | None) -> None:
        """Handle a change of a NodeHealth."""
        name = (new or old).name  # type: ignore[union-attr]
        if new is None:
            self._health.pop(name, None)
            self._said.pop(name, None)
        else:
            before = self._health.get(name)
            self._health[name] = new
            said = report_of(new)
            if said is not None:
                self._said[name] = said
            if before is not None and before.status.findings == new.status.findings:
                return
        self.news_count += 1
        self._doubt(name)

    def preflight_changed(self, old: Preflight | None, new: Preflight | None) -> None:
        """Handle a change of a Preflight."""
        name = (new or old).name  # type: ignore[union-attr]
        if new is None:
            self._preflights.pop(name, None)
            self.tested.pop(name, None)
        else:
            self._preflights[name] = new
            self.tested[name] = tested_of(new)
        self.news_count += 1
        self._view(name)
        self._doubt(name)

    def session_changed(self, old: NodeRemediation | None, new: NodeRemediation | None) -> None:
        """Handle a change of a session. The version that we wrote ourselves may be newer."""
        if new is None:
            assert old is not None
            self.sessions.pop(old.name, None)
            self._doubt(old.spec.node)
        else:
            self.written(new)

    def written(self, session: NodeRemediation) -> None:
        """Apply a session from the API server's answer to a write, or from the watch."""
        before = self.sessions.get(session.name)
        newest = record.newer(before, session)
        if newest is not before:
            self.sessions[session.name] = newest
            self._doubt(session.spec.node)

    def placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        """Handle a change of a Placement."""
        key = (new or old).key  # type: ignore[union-attr]
        before = self._slots.pop(key, frozenset())
        now = frozenset(placement_keeps(new)) if new is not None else frozenset()
        if now:
            self._slots[key] = now
        if before == now:
            return
        for name in before - now:
            left = self.gangs.get(name, frozenset()) - {key}
            if left:
                self.gangs[name] = left
            else:
                self.gangs.pop(name, None)
        for name in now - before:
            self.gangs[name] = self.gangs.get(name, frozenset()) | {key}
        self._changed()

    def step_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a pod that resets or reboots."""
        if new is None or new.terminating:
            self.steps.pop((new or old).name, None)  # type: ignore[union-attr]
        else:
            self.steps[new.name] = view_of(new)
        self._changed()

    def judge(self, policy: Policy, now: float) -> None:
        """Evaluate again the nodes that changed, or whose evaluation may change with time."""
        self._stale |= {name for name, due in self._due.items() if due < now}
        stale, self._stale = self._stale, set()
        for name in stale:
            self._due.pop(name, None)
            node = self.raw.get(name)
            health = self._health.get(name)
            if node is None:
                self.evidence.pop(name, None)
                self.cleared.pop(name, None)
                self.reports.pop(name, None)
                continue
            session = self.sessions.get(remediation_name(name, node.uid))
            boot_id = self.nodes[name].boot_id
            labels, preflight = node.metadata.labels, self._preflights.get(name)
            mesh = self._mesh.get(name)
            said = judged(node.uid, boot_id, labels, health, preflight, session, policy, now, mesh)
            if said.cleared is not None:
                self.cleared[name] = said.cleared
            else:
                self.cleared.pop(name, None)
            found, due = evidence_of(said.decision)
            if found is not None:
                self.evidence[name] = found
            else:
                self.evidence.pop(name, None)
            if due is not None:
                self._due[name] = due
            self._report(name, health, now)

    def heard(self, mesh: dict[str, Finding]) -> None:
        """Apply the current findings of the mesh."""
        changed = {name for name in self._mesh.keys() | mesh.keys() if _what(self._mesh, name) != _what(mesh, name)}
        self._mesh = mesh
        for name in changed:
            self._doubt(name)

    def judge_all(self) -> None:
        """Evaluate all nodes again because the policy changed."""
        self._stale |= self.raw.keys()
        self._changed()

    def _report(self, name: str, health: NodeHealth | None, now: float) -> None:
        findings = [finding_of(each) for each in health.status.findings] if health is not None else []
        names = unreached(self._about_these(findings), now)
        if names:
            self.reports[name] = names
            self._due[name] = min(self._due.get(name, float("inf")), now + 60.0)
        else:
            self.reports.pop(name, None)

    def _view(self, name: str) -> None:
        node = self.raw.get(name)
        if node is None:
            return
        tested = self.tested.get(name)
        if tested is not None and tested.node_uid == node.uid:
            self._joined.add(node.uid)
        trusted = node.uid in self._joined  # also when that record is deleted
        view = node_view(node, trusted=trusted, team_key=self._team_key)
        before = self.nodes.get(name)
        if view != before:
            self.nodes[name] = view
            if before is None or (before.uid, before.boot_id) != (view.uid, view.boot_id):
                self._stale.add(name)
            self._changed()

    def _doubt(self, name: str) -> None:
        self._stale.add(name)
        self._changed()
