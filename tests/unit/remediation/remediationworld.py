"""A modelled cluster for decide: what a plan asks for is done to it, in one piece or torn off anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.api.node_remediation import NodeRemediation
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Action as HealthAction
from muster.fleet.remediation.config import RemediationConfig
from muster.fleet.remediation.decide import decide
from muster.fleet.remediation.draining.drain import drains
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.plan import (
    Action,
    Describe,
    Evict,
    Forget,
    ForgetStep,
    Move,
    Open,
    Plan,
    Quarantine,
    Release,
    ReplaceMachine,
    RunStep,
)
from muster.fleet.remediation.snapshot import (
    Evidence,
    PodView,
    QuarantineRecord,
    RemediationNode,
    StepView,
    Tested,
    View,
)

ACT = RemediationConfig(mode="act")
START = 1_000_000.0


def pod(name: str, **more: object) -> PodView:
    return replace(PodView(namespace="ns", name=name, uid=f"uid-{name}"), **more)


class World:
    """Nodes, and what becomes of them."""

    def __init__(self, nodes: int = 10, config: RemediationConfig = ACT, **node: object) -> None:
        self.now = START
        self.config = config
        self.nodes = {
            f"n{i}": RemediationNode(name=f"n{i}", uid=f"uid-{i:04}", boot_id="b0", gpus=8) for i in range(nodes)
        }
        for name, view in self.nodes.items():
            self.nodes[name] = replace(view, **node)
        self.sessions: dict[str, NodeRemediation] = {}
        self.evidence: dict[str, Evidence] = {}
        self.tested: dict[str, Tested] = {}
        self.dead: dict[str, str] = {}
        self.pods: dict[str, list[PodView]] = {}
        self.steps: dict[str, StepView] = {}
        self.gangs: dict[str, frozenset[str]] = {}
        self.free: frozenset[str] = frozenset()
        self.replaceable: frozenset[str] = frozenset()
        self.done: list[Action] = []
        self.plan = Plan()
        self.on_write: Callable[[Action], None] = lambda action: None
        self._version = 0

    def fault(self, name: str, action: HealthAction = "reboot", code: str = "79", **more: object) -> None:
        """Something is found on the node now."""
        finding = Finding(check="xid", component="0000:3b:00", code=code, first_s=self.now, last_s=self.now)
        rule = f"xid/{code} (policy.yaml:7)"
        found = Evidence(
            action=action, fault="hardware", rule=rule, why="it broke", key=f"xid/{code}", findings=(finding,),
            first_s=self.now, last_s=self.now,
        )  # fmt: skip
        self.evidence[name] = replace(found, **more)

    def test(self, name: str, *, passed: bool = True, level: int = 2, later_s: float = 1.0) -> None:
        """The node's preflight ends; what a pass clears counts no more."""
        self.now += later_s
        node = self.nodes[name]
        self.tested[name] = Tested(node.uid, node.boot_id, level, passed, self.now)
        found = self.evidence.get(name)
        if passed and found is not None and found.last_s <= self.now:
            del self.evidence[name]

    def remake(self, name: str, uid: str) -> None:
        """Another machine has the name."""
        self.nodes[name] = RemediationNode(name=name, uid=uid, boot_id=f"boot-of-{uid}", gpus=8)
        self.evidence.pop(name, None)

    def view(self) -> View:
        looked = {name: tuple(pods) for name, pods in self.pods.items()}
        for name in drains(self.sessions.values(), self.nodes):
            looked.setdefault(name, ())
        return View(
            config=self.config, nodes=dict(self.nodes), sessions=dict(self.sessions), evidence=dict(self.evidence),
            tested=dict(self.tested), dead=dict(self.dead), pods=looked, steps=dict(self.steps),
            gangs=dict(self.gangs), free=self.free, replaceable=self.replaceable,
        )  # fmt: skip

    def step(self, keep: Callable[[Action], bool] = lambda action: True) -> Plan:
        """Decide once, and do what is kept of it."""
        self.plan = decide(self.view(), self.now)
        for action in self.plan.actions:
            if keep(action):
                self.carry_out(action)
        return self.plan

    def settle(self, seconds: float = 0.0, steps: int = 30) -> None:
        """Until nothing is left to do."""
        self.now += seconds
        for _ in range(steps):
            if not self.step().actions:
                return
        raise AssertionError(f"it never settles: {self.plan.actions}")

    def carry_out(self, action: Action) -> None:
        self.done.append(action)
        self.on_write(action)
        if isinstance(action, Open):
            assert action.session.name not in self.sessions, "a session is opened once"
            self.sessions[action.session.name] = self._written(action.session)
        elif isinstance(action, Move):
            there = self.sessions.get(action.session.name)
            if there is not None and there.metadata.resource_version == action.session.metadata.resource_version:
                assert action.status.generation > there.status.generation
                self.sessions[there.name] = self._written(replace(there, status=action.status))
        elif isinstance(action, Quarantine):
            mark = QuarantineRecord(
                action.session,
                action.generation,
                "then",
                action.why,
                event=action.event,
                fault_key=action.fault_key,
            )
            self._node(action.node, quarantined=True, record=mark)
        elif isinstance(action, Release):
            self._node(action.node, quarantined=False, record=None)
        elif isinstance(action, Describe):
            there_ = dict(self.nodes[action.node.name].conditions)
            there_.update({type_: text for type_, text in action.conditions.items() if text is not None})
            for type_, text in action.conditions.items():
                if text is None:
                    there_.pop(type_, None)
            self._node(action.node, conditions=there_)
        elif isinstance(action, Evict):
            gone = {pod.uid for pod in action.pods}
            for pods in self.pods.values():
                pods[:] = [pod for pod in pods if pod.uid not in gone]
        elif isinstance(action, RunStep):
            self.steps.setdefault(
                action.name, StepView(action.name, f"uid-{action.name}", "Pending", action.node.name, action.session)
            )
        elif isinstance(action, ForgetStep):
            self.steps.pop(action.name, None)
        elif isinstance(action, Forget):
            del self.sessions[action.session.name]
        else:
            assert isinstance(action, ReplaceMachine)

    def finish_steps(self, phase: str = "Succeeded") -> None:
        """Pods that reset or reboot do their work."""
        for name, step in list(self.steps.items()):
            self.steps[name] = replace(step, phase=phase)
            if "reboot" in name and phase == "Succeeded" and self.nodes[step.node].boot_id in ("b0", "b1"):
                self._node(self.nodes[step.node], boot_id=f"b{int(self.nodes[step.node].boot_id[1:]) + 1}")

    def session(self, name: str) -> NodeRemediation:
        return self.sessions[remediation_name(name, self.nodes[name].uid)]

    def rung(self, name: str) -> str:
        """The rung, or the state where that is not Open."""
        status = self.session(name).status
        return status.rung if status.state == "Open" else str(status.state)

    def rungs(self) -> Counter[str]:
        """How many sessions are where."""
        return Counter(
            each.status.rung if each.status.state == "Open" else str(each.status.state)
            for each in self.sessions.values()
        )

    def tainted(self) -> set[str]:
        return {name for name, node in self.nodes.items() if node.quarantined}

    def was_quarantined(self, name: str) -> bool:
        return record.is_quarantined(self.session(name).status)

    def _node(self, node: RemediationNode, **changes: object) -> None:
        there = self.nodes.get(node.name)
        if there is not None and there.uid == node.uid:
            self.nodes[node.name] = replace(there, **changes)

    def _written(self, session: NodeRemediation) -> NodeRemediation:
        self._version += 1
        meta = replace(session.metadata, resource_version=str(self._version), uid=f"u-{session.name}")
        return replace(session, metadata=meta)
