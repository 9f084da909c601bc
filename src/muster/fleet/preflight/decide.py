"""Decides which nodes to test now, what the result of a test means, and which nodes get the taint.

- A node needs a test before it takes work if it is new, has rebooted or has another driver.
- A node in quarantine needs one when remediation waits for it (fleet/remediation).
- An idle node is tested again at intervals.
- If a node failed its test, remediation or an operator repairs it. Preflight does not test it again before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from muster.api.preflight import PreflightFailure, PreflightSpec
from muster.api.trust import Doubt
from muster.fleet.preflight.config import PreflightConfig
from muster.fleet.preflight.plan import Accept, Action, Plan, PutTaint, Remove, Revoke, Start, State, TakeTaint
from muster.fleet.preflight.records import accepted
from muster.fleet.preflight.snapshot import AGENT_DRIVER, Attempts, PreflightNode, TestView, View
from muster.fleet.preflight.testpod import made_with, run_s
from muster.gputest.codes import Code

HOUR_S = 3600.0
RETEST_WAITS_S = 30.0
"""If the pod of a retest finds no room within this time, it is deleted, because the node is not idle."""
AGAIN_S, AGAIN_MAX_S = 60.0, 1800.0
"""The back-off after a test without a result, doubled each time up to a limit."""
PAUSE_S = 600.0
"""The pause after a test of an idle node that was preempted or found no room."""
STILL_S = 300.0
"""Minimum time between two tests if the result of the first one changed nothing."""
OVERDUE_S = 60.0
"""Tolerance after the pod's deadline, which the kubelet enforces.

If the pod still runs then, the node does not respond.
"""


def decide(view: View, now: float) -> Plan:
    """Return what to do now; an empty plan if nothing is to be done."""
    return _Planner(view, now).plan()


def may_have_work(node: PreflightNode) -> bool:
    """Return whether the node may take work, so that the taint may be removed."""
    return node.ignored or (node.has_gpus and not node.doubt)


class _Planner:
    def __init__(self, view: View, now: float) -> None:
        self.view, self.now = view, now
        self.made_with = made_with(view.config) if view.config is not None else ""
        self.actions: list[Action] = []
        self.attempts: dict[str, Attempts] = {}
        self.states: dict[str, State] = {}
        self.wake: list[float] = []
        self.tests: dict[str, list[TestView]] = {}
        for test in view.tests.values():
            self.tests.setdefault(test.node, []).append(test)
        for name, attempts in view.attempts.items():
            node = view.nodes.get(name)
            if node is not None and _same(attempts, node) and attempts.made_with == self.made_with:
                self.attempts[name] = attempts

    def plan(self) -> Plan:
        for name, tests in sorted(self.tests.items()):
            for test in tests:
                self.carry_on(test, self.view.nodes.get(name))
        for _, node in sorted(self.view.nodes.items()):
            self.look_at(node)
        config = self.view.config
        if config is not None:
            self.begin(config)
        wake = min((at for at in self.wake if at > self.now), default=None)
        return Plan(tuple(self.actions), self.attempts, self.states, wake)

    # Existing tests

    def carry_on(self, test: TestView, node: PreflightNode | None) -> None:
        if test.leaving:
            return
        if node is None or not _is_about(test, node):
            self.actions.append(Remove(test, "its node is gone, or in another boot"))
        elif test.end is not None:
            self.end(test, node, test.end.record, test.end.why)
        elif node.wanted_since == float("inf"):
            # Remediation acts on the machine first, and GPUs that a test uses cannot be reset.
            self.actions.append(Remove(test, "its node is worked on before it is tested"))
        elif not test.started_at and self.is_outdated(test):
            self.actions.append(Remove(test, "it was made with another configuration and has not started"))
        elif not test.bound:
            self.wait_for_room(test, node)
        elif not test.started_at:
            self.wait_until(test, node, test.made_at + self.start_s, "it did not start in time")
        else:
            limit = test.started_at + run_s(test.level) + OVERDUE_S
            if self.now < limit:
                self.wake.append(limit)
            elif node.held:
                self.give_up(test, node, f"it did not end, and its node {node.held}")
            else:
                self.end(test, node, _hung(test, self.now), "")

    def is_outdated(self, test: TestView) -> bool:
        return bool(self.made_with and test.made_with) and test.made_with != self.made_with

    def end(self, test: TestView, node: PreflightNode, record: PreflightSpec | None, why: str) -> None:
        if record is None:
            self.give_up(test, node, why)
            return
        result = accepted(test, record, node, self.now)
        if result is None:
            self.actions.append(Remove(test, ""))
            return
        self.attempts.pop(node.name, None)
        self.actions.append(Accept(test, result))

    def wait_for_room(self, test: TestView, node: PreflightNode) -> None:
        if node.held or node.busy or (test.retest and node.promised):
            self.pause(test, node, f"its node {node.held}" if node.held else "its node is in use")
        elif test.retest:
            limit = test.made_at + RETEST_WAITS_S
            if self.now < limit:
                self.wake.append(limit)
            else:
                self.pause(test, node, "there was no room for it")
        else:
            self.wait_until(test, node, test.made_at + self.start_s, "it got no place in time")

    def wait_until(self, test: TestView, node: PreflightNode, limit: float, why: str) -> None:
        if self.now < limit:
            self.wake.append(limit)
        else:
            self.give_up(test, node, why)

    def give_up(self, test: TestView, node: PreflightNode, why: str) -> None:
        """End a test without a result, and retry later; each retry waits longer."""
        known = self.attempts.get(node.name)
        count = known.count + 1 if known is not None else 1
        again_s = min(AGAIN_MAX_S, AGAIN_S * 2 ** min(count - 1, 10))
        self.attempts[node.name] = Attempts(node.identity, count, self.now + again_s, self.made_with)
        self.actions.append(Remove(test, why, inconclusive=True))

    def pause(self, test: TestView, node: PreflightNode, why: str) -> None:
        """End a test that was in the way of other pods. This is not counted as a failure."""
        known = self.attempts.get(node.name)
        pause_s = PAUSE_S if test.retest else AGAIN_S
        count = known.count if known is not None else 0
        self.attempts[node.name] = Attempts(node.identity, count, self.now + pause_s, self.made_with)
        self.actions.append(Remove(test, why))

    @property
    def start_s(self) -> float:
        config = self.view.config
        return config.start_s if config is not None else 0.0

    # Records and taints

    def look_at(self, node: PreflightNode) -> None:
        record = node.own_record
        if record is not None and _has_new_driver(record, node):
            self.actions.append(Revoke(node.name, record))
            self.states[node.name] = State.WAITING
            return
        if may_have_work(node):
            if node.pending:
                self.actions.append(TakeTaint(node.name))
        elif node.has_gpus and not node.pending and not node.busy and self.view.config is not None:
            self.actions.append(PutTaint(node.name))
        self.states[node.name] = self.state_of(node)

    def state_of(self, node: PreflightNode) -> State:
        if node.ignored or not (node.has_gpus or node.pending):
            return State.NONE
        if any(not test.leaving for test in self.tests.get(node.name, ())):
            return State.TESTING
        if not node.doubt:
            return State.TRUSTED
        return State.FAILED if node.doubt is Doubt.FAILED else State.WAITING

    # New tests

    def begin(self, config: PreflightConfig) -> None:
        refused = self.view.refused
        if refused is None or refused.made_with != self.made_with:
            self.actions += self.starts(config)
        elif self.now < refused.not_before:
            self.wake.append(refused.not_before)
        else:
            self.actions += self.starts(config)[:1]

    def starts(self, config: PreflightConfig) -> list[Start]:
        running = [test for test in self.view.tests.values() if test.end is None]
        room = config.at_once - sum(not test.retest for test in running)
        idle_room = config.retests.at_once - sum(test.retest for test in running)
        first = sorted(self.first_tests(config), key=lambda each: (each[0], each[1].node))
        again = sorted(self.retests(config), key=lambda each: (-each[0], each[1].node))
        asked = [start for urgency, start in again if urgency == float("inf")][: max(0, room - len(first))]
        usual = [start for urgency, start in again if urgency != float("inf")][: max(0, idle_room)]
        return [*(start for _, start in first[: max(0, room)]), *asked, *usual]

    def first_tests(self, config: PreflightConfig) -> Iterator[tuple[float, Start]]:
        """Yield tests for nodes that cannot be used without one, with each node's creation time for sorting."""
        for node in self.testable():
            level = self.level_wanted(node, config)
            if level:
                yield node.created_at, Start(node.name, node.identity, node.gpus, level)

    def level_wanted(self, node: PreflightNode, config: PreflightConfig) -> int:
        """Return the level of the test that the node waits for; 0 if it does not wait."""
        record = node.own_record
        if node.wanted_since is not None:
            return self.level_to_leave(node, node.wanted_since, config)
        if node.quarantined or not node.doubt or node.doubt is Doubt.FAILED:
            return 0
        if node.doubt is Doubt.NEW_DRIVER and record is not None and not self.is_over(record, AGAIN_MAX_S):
            return 0  # the node and the test report different drivers; another test would probably report the same
        return config.levels.boot

    def level_to_leave(self, node: PreflightNode, since: float, config: PreflightConfig) -> int:
        """Return the test level that ends the quarantine: raised if a pass of this level was not enough; 0 to wait."""
        record, found_at = node.own_record, node.found_at
        level = max(node.wanted_level, config.levels.suspect)
        if since > self.now:  # the request's clock is ahead: until then, a test would not end the quarantine
            if since != float("inf"):
                self.wake.append(since)
            return 0
        if record is None or record.time.timestamp() <= since:
            return level
        if not record.passed or not self.is_over(record, STILL_S):
            return 0
        if record.time.timestamp() <= found_at:
            return level
        return max(level, record.level + 1) if record.level < 3 else 0

    def retests(self, config: PreflightConfig) -> Iterator[tuple[float, Start]]:
        """Yield tests of idle nodes with their urgency; infinite if a pod waits for a recent test."""
        for node in self.testable():
            record = node.own_record
            if node.doubt or record is None or node.promised or node.quarantined or node.wanted_since is not None:
                continue
            age_h = (self.now - record.time.timestamp()) / HOUR_S
            wanted = self.view.wanted_within_h
            due = config.retests.every_hours / (1 + node.suspicion)
            level = config.levels.suspect if node.suspicion else config.levels.retest
            start = Start(node.name, node.identity, node.gpus, level, retest=True)
            if wanted and age_h >= wanted:
                yield float("inf"), start
            elif age_h >= due:
                yield age_h / due, start
            else:
                self.wake.append(record.time.timestamp() + min(due, wanted or due) * HOUR_S)

    def testable(self) -> Iterator[PreflightNode]:
        for node in self.view.nodes.values():
            if node.ignored or node.held or node.busy or not node.gpus or self.tests.get(node.name):
                continue
            attempts = self.attempts.get(node.name)
            if attempts is not None and self.now < attempts.not_before:
                self.wake.append(attempts.not_before)
                continue
            yield node

    def is_over(self, record: PreflightSpec, after_s: float) -> bool:
        end = record.time.timestamp() + after_s
        if self.now < end:
            self.wake.append(end)
        return self.now >= end


def _is_about(test: TestView, node: PreflightNode) -> bool:
    mine, own = test.identity, node.identity
    return (mine.node_uid, mine.boot_id) == (own.node_uid, own.boot_id)


def _same(attempts: Attempts, node: PreflightNode) -> bool:
    known, own = attempts.identity, node.identity
    return (known.node_uid, known.boot_id) == (own.node_uid, own.boot_id)


def _has_new_driver(record: PreflightSpec, node: PreflightNode) -> bool:
    """Return whether the agent reports another driver than at the time of the test, in the same boot.

    If the agent had not reported then, the test's driver is compared. The agent's reports are preferred: if two
    programs write the same version differently, tests would never end.
    """
    before = record.versions.get(AGENT_DRIVER) or record.driver
    return bool(node.agent_driver and before) and node.agent_driver != before


def _hung(test: TestView, now: float) -> PreflightSpec:
    message = "the test did not end, and its node did not stop it"
    return PreflightSpec(
        node_uid=test.identity.node_uid,
        boot_id=test.identity.boot_id,
        level=test.level,
        passed=False,
        time=datetime.fromtimestamp(now, UTC),
        failures=(PreflightFailure(test="all", code=Code.HUNG.value, message=message),),
    )
