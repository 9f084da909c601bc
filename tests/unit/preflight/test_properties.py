"""What must never happen, whatever the order of events; each property is named after the bad thing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.fleet.preflight.plan import Accept, Start, TakeTaint
from tests.unit.preflight.world import CONFIG, World

NODES = [f"n{number}" for number in range(6)]
HOUR_S = 3600.0


class Preflights(RuleBasedStateMachine):
    """Nodes reboot, are replaced, fill and empty; tests end somehow or never; controllers die half-way."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.add(*NODES)
        self.boots = 0

    @rule(name=st.sampled_from(NODES))
    def reboot(self, name: str) -> None:
        self.boots += 1
        self.world.reboot(name, f"boot-{self.boots + 1}")

    @rule(name=st.sampled_from(NODES))
    def replace_node(self, name: str) -> None:
        self.boots += 1
        before = self.world.nodes[name]
        uid = f"uid-{name}-{self.boots}"
        self.world.add(name, uid=uid, boot_id=before.boot_id, record=before.record)

    @rule(name=st.sampled_from(NODES), busy=st.booleans(), held=st.sampled_from(["", "", "is not ready"]))
    def use(self, name: str, busy: bool, held: str) -> None:
        self.world.change(name, busy=busy and not self.world.nodes[name].pending, held=held)

    @rule(name=st.sampled_from(NODES), since=st.sampled_from([None, None, "now", "later"]))
    def quarantine(self, name: str, since: str | None) -> None:
        wanted = {None: None, "now": self.world.now, "later": float("inf")}[since]
        self.world.change(name, quarantined=since is not None, wanted_since=wanted)

    @rule(name=st.sampled_from(NODES), driver=st.sampled_from(["", "550", "570"]))
    def agent_says(self, name: str, driver: str) -> None:
        self.world.change(name, agent_driver=driver)

    @rule(name=st.sampled_from(NODES), outcome=st.sampled_from(["passed", "passed", "failed", "nothing"]))
    def end_test(self, name: str, outcome: str) -> None:
        test = self.world.test_of(name)
        if test is not None and test.end is None:
            why = "it ended with 127" if outcome == "nothing" else ""
            self.world.end_test(name, passed=outcome == "passed", why=why, driver="550")

    @rule(name=st.sampled_from(NODES))
    def run_test(self, name: str) -> None:
        if self.world.test_of(name) is not None:
            self.world.run_test(name)

    @rule(name=st.sampled_from(NODES))
    def work_comes(self, name: str) -> None:
        """A test of an idle node leaves for it."""
        node, test = self.world.nodes[name], self.world.test_of(name)
        if not node.doubt and not node.quarantined and (test is None or test.retest):
            if test is not None:
                del self.world.tests[test.name]
            self.world.change(name, busy=True)

    @rule(hours=st.sampled_from([0.01, 0.2, 2, 200]))
    def wait(self, hours: float) -> None:
        self.world.now += hours * HOUR_S

    @rule()
    def step(self) -> None:
        self.checked(self.world.decide().actions)

    @rule(count=st.integers(1, 3))
    def half_a_step(self, count: int) -> None:
        """A controller that dies half-way."""
        self.checked(self.world.decide().actions[:count])

    def checked(self, actions: object) -> None:
        attempts = self.world.decide().attempts
        for action in actions:  # type: ignore[attr-defined]
            self.never_a_test_where_none_may_run(action)
            self.never_a_result_of_another_boot(action)
            self.never_opened_without_a_pass(action)
            self.world.carry_out(action)
        self.world.attempts = dict(attempts)

    def never_a_test_where_none_may_run(self, action: object) -> None:
        if isinstance(action, Start):
            node = self.world.nodes[action.node]
            assert not node.busy, node
            assert not node.held, node
            assert not node.quarantined or node.wanted_since is not None, node
            failed = node.own_record is not None and not node.own_record.passed
            assert not failed or node.wanted_since is not None, node

    def never_a_result_of_another_boot(self, action: object) -> None:
        if isinstance(action, Accept):
            own = self.world.nodes[action.test.node].identity
            assert (action.record.node_uid, action.record.boot_id) == (own.node_uid, own.boot_id)

    def never_opened_without_a_pass(self, action: object) -> None:
        if isinstance(action, TakeTaint):
            node = self.world.nodes[action.node]
            assert node.own_record is not None, node
            assert node.own_record.passed, node

    @invariant()
    def never_more_tests_than_allowed(self) -> None:
        running = [test for test in self.world.tests.values() if test.end is None]
        assert sum(not test.retest for test in running) <= CONFIG.at_once
        assert sum(test.retest for test in running) <= CONFIG.retests.at_once

    @invariant()
    def never_nothing_left_to_wait_for(self) -> None:
        """A node that may be tested is tested when due: a plan without actions says when to look again."""
        world = self.world
        plan = world.decide()
        if plan.actions or world.tests:
            return
        for node in world.nodes.values():
            waits = node.doubt and node.own_record is None and not (node.busy or node.held or node.quarantined)
            assert not waits or plan.wake_at is not None, node


@pytest.mark.slow
def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(
        Preflights,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )
