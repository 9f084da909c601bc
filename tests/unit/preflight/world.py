"""Nodes, their records and their tests in memory, and what the API server and kubelets would make of a plan."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from muster.api.preflight import PreflightFailure, PreflightSpec
from muster.fleet.preflight.config import Levels, PreflightConfig, Retests
from muster.fleet.preflight.decide import decide
from muster.fleet.preflight.plan import Accept, Plan, PutTaint, Remove, Revoke, Start, TakeTaint
from muster.fleet.preflight.snapshot import Attempts, End, PreflightNode, Refusal, TestView, View
from muster.fleet.preflight.testpod import made_with

START = 1_700_000_000.0
CONFIG = PreflightConfig(
    image="tests", levels=Levels(boot=1, retest=2, suspect=2), at_once=4, retests=Retests(168.0, 2)
)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def record(
    node: PreflightNode, time: float, *, passed: bool = True, level: int = 1, driver: str = "", **versions: str
) -> PreflightSpec:
    failures = () if passed else (PreflightFailure(test="memory", code="wrong-word"),)
    return PreflightSpec(
        node_uid=node.identity.node_uid,
        boot_id=node.identity.boot_id,
        driver=driver,
        level=level,
        passed=passed,
        time=at(time),
        versions=versions,
        failures=failures,
    )


class World:
    """The cluster as preflight sees it. `step` decides once and carries it out; tests end on request."""

    def __init__(self, config: PreflightConfig | None = CONFIG) -> None:
        self.config = config
        self.now = START
        self.nodes: dict[str, PreflightNode] = {}
        self.tests: dict[str, TestView] = {}
        self.attempts: dict[str, Attempts] = {}
        self.refused: Refusal | None = None
        self.wanted_within_h = 0
        self.said: list[str] = []
        """Why tests were removed, and what was revoked."""
        self._made = 0

    def add(self, *names: str, **changes: Any) -> None:
        for name in names:
            known = {"uid": f"uid-{name}", "boot_id": "boot-1", "created_at": self.now, "gpus": 8, "has_gpus": True}
            self.nodes[name] = PreflightNode(name=name, **{**known, **changes})

    def change(self, name: str, **changes: Any) -> None:
        self.nodes[name] = replace(self.nodes[name], **changes)

    def reboot(self, name: str, boot: str) -> None:
        """As a real one does: the taint does not come back, and containers are gone."""
        self.change(name, boot_id=boot)

    def record(self, name: str, *, ago_s: float = 0.0, **options: Any) -> None:
        self.change(name, record=record(self.nodes[name], self.now - ago_s, **options))

    def view(self) -> View:
        return View(
            config=self.config,
            nodes=self.nodes,
            tests=self.tests,
            attempts=self.attempts,
            refused=self.refused,
            wanted_within_h=self.wanted_within_h,
        )

    def decide(self) -> Plan:
        return decide(self.view(), self.now)

    def step(self) -> Plan:
        plan = self.decide()
        self.attempts = dict(plan.attempts)
        for action in plan.actions:
            self.carry_out(action)
        return plan

    def settle(self) -> Plan:
        """Until there is nothing to do."""
        for _ in range(30):
            plan = self.step()
            if not plan.actions:
                return plan
        raise AssertionError(f"still busy: {plan.actions}")

    def carry_out(self, action: object) -> None:
        if isinstance(action, Start):
            name = f"test-{action.identity.node_uid}"
            if name not in self.tests:
                self._made += 1
                self.tests[name] = TestView(
                    name=name,
                    uid=f"{name}-{self._made}",
                    node=action.node,
                    identity=action.identity,
                    level=action.level,
                    retest=action.retest,
                    made_at=self.now,
                    made_with=made_with(self.config) if self.config is not None else "",
                )
        elif isinstance(action, Accept):
            self.change(action.test.node, record=action.record)
            self.tests.pop(action.test.name, None)
        elif isinstance(action, Remove):
            self.said.append(action.why)
            self.tests.pop(action.test.name, None)
        elif isinstance(action, Revoke):
            self.said.append("revoked")
            self.change(action.node, record=replace(action.record, revoked_time=datetime.fromtimestamp(self.now, UTC)))
        elif isinstance(action, PutTaint):
            self.change(action.node, pending=True)
        else:
            assert isinstance(action, TakeTaint)
            self.change(action.node, pending=False)

    # What schedulers and kubelets do

    def test_of(self, node: str) -> TestView | None:
        return next((test for test in self.tests.values() if test.node == node), None)

    def run_test(self, node: str) -> TestView:
        """The test gets its node and starts."""
        test = self.test_of(node)
        assert test is not None, node
        self.tests[test.name] = test = replace(test, bound=True, started_at=self.now)
        return test

    def end_test(self, node: str, *, passed: bool = True, why: str = "", driver: str = "") -> None:
        """It ends: with a result, or without one and why."""
        test = self.run_test(node) if not self._started(node) else self.test_of(node)
        assert test is not None
        self.now += 5.0
        made_for = replace(self.nodes[node], uid=test.identity.node_uid, boot_id=test.identity.boot_id)
        found = None if why else record(made_for, self.now, passed=passed, level=test.level, driver=driver)
        self.tests[test.name] = replace(test, end=End(found, why))

    def _started(self, node: str) -> bool:
        test = self.test_of(node)
        return test is not None and bool(test.started_at)
