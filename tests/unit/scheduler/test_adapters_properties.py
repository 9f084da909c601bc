"""What must never happen to gangs of others, whatever the order of pods, objects, nodes and schedulers.

A failing example prints its steps; `pytest --hypothesis-seed=N` repeats the run.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.scheduler.plan import Bind, WritePlacement
from tests.unit.scheduler.foreign import Foreign
from tests.unit.scheduler.test_properties import nodes_seen
from tests.unit.scheduler.world import node

NODES = [f"n{number}" for number in range(5)]
GROUPS = ["red", "blue"]
SETS = ["web", "db"]


class Others(RuleBasedStateMachine):
    """Pod groups and stateful sets change while their pods come and go; some binds fail, schedulers restart."""

    @initialize()
    def begin(self) -> None:
        self.world = Foreign(bind_deadline_s=30.0, hold_s=1000.0)
        self.made = 0
        for name in NODES:
            self.world.set_node(node(name))

    def pods_of(self, name: str) -> list[str]:
        return sorted(pod.name for pod in self.world.pods.values() if pod.name.split("-")[0] == name)

    @rule(name=st.sampled_from(GROUPS), minimum=st.integers(1, 4))
    def set_group(self, name: str, minimum: int) -> None:
        self.world.set_object("pod-group", name, {"minMember": minimum})

    @rule(name=st.sampled_from(GROUPS))
    def delete_group(self, name: str) -> None:
        if ("pod-group", name) in self.world.objects:
            self.world.remove_object("pod-group", name)

    @rule(name=st.sampled_from(GROUPS), count=st.integers(1, 3))
    def add_to_group(self, name: str, count: int) -> None:
        for _ in range(count):
            self.made += 1
            self.world.grouped(name, f"{name}-{self.made:03}")
        self.world.now += 1

    @rule(name=st.sampled_from(SETS), replicas=st.integers(1, 4))
    def scale(self, name: str, replicas: int) -> None:
        spec = {"replicas": replicas, "podManagementPolicy": "Parallel"}
        self.world.set_object("statefulset", name, spec)
        for index in range(replicas):
            if f"{name}-{index}" not in self.pods_of(name):
                self.world.set_pod_of(name, index)
        for pod in self.pods_of(name):
            if int(pod.split("-")[1]) >= replicas:
                self.world.remove_pod(pod)
        self.world.now += 1

    @rule(name=st.sampled_from(GROUPS + SETS), data=st.data())
    def remove(self, name: str, data: st.DataObject) -> None:
        pods = self.pods_of(name)
        if pods:
            self.world.remove_pod(data.draw(st.sampled_from(pods)))

    @rule(name=st.sampled_from(GROUPS), data=st.data())
    def finish(self, name: str, data: st.DataObject) -> None:
        running = [pod for pod in self.pods_of(name) if self.world.find(pod).spec.node_name]
        if running:
            self.world.finish(data.draw(st.sampled_from(running)))

    @rule(name=st.sampled_from(NODES), ready=st.booleans())
    def health(self, name: str, ready: bool) -> None:
        self.world.set_node(node(name, ready=ready))

    @rule(count=st.integers(1, 4), fail=st.booleans())
    def act(self, count: int, fail: bool) -> None:
        """Carry out only the first actions of a plan; the last bind may fail."""
        actions = self.world.decide().actions[:count]
        self.never_started_below_the_minimum(actions)
        for action in actions[: -1 if fail else None]:
            self.world.carry_out(action)
        if fail and actions and isinstance(actions[-1], Bind):
            bind = actions[-1]
            self.world.state.begin_bind(bind.uid, bind.node)
            self.world.state.end_bind(bind.uid, self.world.now, error="refused", retry_at=self.world.now + 5)
        self.world.now += 0.01

    @rule(seconds=st.sampled_from([1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def settle(self) -> None:
        self.world.run(rounds=80)
        self.never_another_view_than_a_new_leader_has()

    @rule()
    def new_scheduler(self) -> None:
        self.world.forget_all()

    def never_started_below_the_minimum(self, actions: tuple[object, ...]) -> None:
        for action in actions:
            if isinstance(action, WritePlacement) and action.create:
                gang = self.world.state.gangs[action.gang]
                assert gang.roster is not None
                done = len(gang.roster.done)
                assert len(action.placement.spec.slots) + done >= gang.roster.minimum, action

    @invariant()
    def never_over_capacity(self) -> None:
        used = Counter(
            pod.spec.node_name for pod in self.world.pods.values() if pod.spec.node_name and not pod.finished
        )
        assert all(count <= 1 for count in used.values()), used

    @invariant()
    def never_a_pod_lost_to_its_gang(self) -> None:
        """Every live pod is somewhere: a member, an extra that may join, or waiting for its object."""
        self.world.state.snapshot()
        for uid, pod in self.world.pods.items():
            record = self.world.state.pods[uid]
            gang = self.world.state.gangs[record.gang]
            assert gang.roster is not None
            if pod.finished or pod.terminating:
                continue
            places = [gang.current.get(record.slot), gang.joiners.get(record.slot)]
            assert record in places or uid in gang.roster.standing, (pod.name, record.slot)

    def never_another_view_than_a_new_leader_has(self) -> None:
        """Except where an object was deleted under its pods, or a placement has none: a new leader then knows less."""
        for gang in self.world.state.gangs.values():
            if gang.roster is None or gang.roster.orphan or not gang.current:
                return
        fresh = self.world.listed().snapshot()
        assert nodes_seen(self.world.state.snapshot(), set()) == nodes_seen(fresh, set())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for name in NODES:
            self.world.set_node(node(name))
        for _ in range(6):
            self.settle()
            self.world.now += 31
        self.settle()
        self.never_deadlocked()

    def never_deadlocked(self) -> None:
        """In the end a gang whose minimum is there and fits holds it, and pods beyond it wait for room only."""
        free = len(NODES) - len(
            {pod.spec.node_name for pod in self.world.pods.values() if pod.spec.node_name and not pod.finished}
        )
        held = sum(len(gang.holds) for gang in self.world.state.gangs.values())
        for gang in self.world.state.gangs.values():
            assert gang.roster is not None
            waiting = [pod for pod in gang.current.values() if not pod.node]
            if gang.roster.shape is None or gang.roster.orphan or not gang.complete or len(gang.pods) == 0:
                continue
            if waiting:
                assert len(waiting) > free - held or gang.placement is None, (gang.key, len(waiting), free, held)
            elif gang.joiners and gang.placement is not None:
                others = any(other.pending for other in self.world.state.gangs.values())
                assert free - held <= 0 or others, (gang.key, free, held)


@pytest.mark.slow
def test_no_order_of_events_breaks_a_promise_to_gangs_of_others() -> None:
    run_state_machine_as_test(
        Others,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in Phase if phase is not Phase.explain],  # tracing makes it too slow
        ),
    )
