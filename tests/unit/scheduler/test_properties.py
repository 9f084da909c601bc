"""What must never happen, whatever the order of events; each property is named after the bad thing.

A failing example prints its steps; `pytest --hypothesis-seed=N` repeats the run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import EndedRun, RunTimes
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import Bind, Plan, TellToLeave
from muster.scheduler.snapshot import Snapshot
from tests.unit.scheduler.world import World, node, reason_of

NODES = [f"n{number}" for number in range(6)]
GANGS = ["alpha", "beta", "gamma", "delta"]
LABELS = {"pool": "research", "zone": "one"}
"""Of all nodes. Which of them a gang asks for differs, so that the scheduler learns late which labels matter."""


def nodes_seen(snapshot: Snapshot, keys: set[str]) -> dict[str, object]:
    """The reason about each node for pods that ask for these labels."""
    return {
        name: (
            {key: bucket.node_class.labels.get(key) for key in keys},
            bucket.node_class.problem,
            bucket.free,
            bucket.ports,
        )
        for bucket in snapshot.buckets.values()
        for name in bucket.names
    }


class Cluster(RuleBasedStateMachine):
    """Gangs come, restart, finish; nodes break; binds and writes happen one by one, some fail, schedulers restart."""

    @initialize()
    def begin(self) -> None:
        self.world = World(bind_deadline_s=30.0, hold_s=1000.0)
        self.attempts: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}
        self.priorities: dict[str, int] = {}
        self.gpus: dict[str, int] = {}
        self.asks: dict[str, dict[str, str]] = {}
        for name in NODES:
            self.world.set_node(node(name, labels=LABELS))

    def tick(self, seconds: float = 1.0) -> None:
        self.world.now += seconds

    def members(self, gang: str) -> list[str]:
        label = "muster.dev/gang"
        return [pod.name for pod in self.world.pods.values() if pod.metadata.labels.get(label) == gang]

    @rule(
        gang=st.sampled_from(GANGS),
        size=st.integers(1, 6),
        gpus=st.sampled_from([2, 8]),
        priority=st.integers(0, 2),
        labels=st.sets(st.sampled_from(sorted(LABELS))),
        facts=st.builds(
            JobFacts,
            limit_s=st.sampled_from([None, 100.0, 1000.0]),
            requeue=st.booleans(),
            restartable=st.booleans(),
            requeueable=st.booleans(),
            asked=st.integers(0, 4),
        ),
    )
    def submit(self, gang: str, size: int, gpus: int, priority: int, labels: set[str], facts: JobFacts) -> None:
        if self.members(gang) or f"default/{gang}" in self.world.placements:
            return
        self.sizes[gang], self.gpus[gang], self.priorities[gang] = size, gpus, priority
        self.world.set_job(gang, facts)
        self.asks[gang] = {key: LABELS[key] for key in labels}
        for slot in range(size):
            self.add_member(gang, slot)
        self.tick()

    @rule(run_s=st.sampled_from([5.0, 500.0, 50_000.0]))
    def learn(self, run_s: float) -> None:
        """Gangs with this run time are known from now on; it says nothing about those that run here."""
        ended = [EndedRun(Likeness(namespace="default", gpus=8), run_s, True, self.world.now) for _ in range(20)]
        self.world.state.set_run_times(RunTimes(ended))

    def add_member(self, gang: str, slot: int, **spec: Any) -> None:
        spec = {"gpus": self.gpus[gang], "nodeSelector": self.asks[gang], "priority": self.priorities[gang], **spec}
        self.world.add_member(gang, slot, self.sizes[gang], attempt=self.attempts[gang], **spec)

    @rule(gang=st.sampled_from(GANGS), data=st.data())
    def restart(self, gang: str, data: st.DataObject) -> None:
        """Some members go and are recreated."""
        if gang not in self.sizes or not self.members(gang):
            return
        slots = data.draw(st.sets(st.integers(0, self.sizes[gang] - 1), min_size=1))
        self.attempts[gang] += 1
        for name in self.members(gang):
            if int(name.split("-")[1]) in slots:
                self.world.remove_pod(name)
        self.make_missing(gang)

    @rule(gang=st.sampled_from(GANGS))
    def make_missing(self, gang: str) -> None:
        """The job's controller makes the members that are not there."""
        if gang not in self.sizes:
            return
        present = {int(name.split("-")[1]) for name in self.members(gang)}
        for slot in set(range(self.sizes[gang])) - present:
            self.add_member(gang, slot)
        self.tick()

    @rule(gang=st.sampled_from(GANGS))
    def end(self, gang: str) -> None:
        """The job ends: its pods go, its slots are free."""
        self.world.remove_gang(gang)
        if gang in self.sizes:
            self.world.set_job(gang, JobFacts(ended="Succeeded"))
            self.settle()
            del self.world.jobs[f"uid-{gang}"]
            self.world.state.jobs.remove(f"uid-{gang}")
            self.sizes.pop(gang)

    @rule(gang=st.sampled_from(GANGS), done=st.booleans())
    def obey(self, gang: str, done: bool) -> None:
        """The controller of a job that is to leave deletes its pods; they end at once or later."""
        placement = self.world.placements.get(f"default/{gang}")
        if placement is None or placement.status.phase != "Preempting":
            return
        for name in self.members(gang):
            if not done:
                self.world.terminate(name)
            else:
                self.world.remove_pod(name)
        if done:
            self.attempts[gang] += 1

    @rule(name=st.sampled_from(NODES), ready=st.booleans())
    def health(self, name: str, ready: bool) -> None:
        if name in self.world.nodes:
            self.world.set_node(node(name, uid=self.world.nodes[name].uid, ready=ready, labels=LABELS))

    @rule(name=st.sampled_from(NODES))
    def replace_node(self, name: str) -> None:
        """The node goes with its pods; another of the same name comes."""
        for pod in [pod for pod in self.world.pods.values() if pod.spec.node_name == name]:
            self.world.remove_pod(pod.name)
        if name in self.world.nodes:
            self.world.remove_node(name)
        else:
            self.tick()
            self.world.set_node(node(name, uid=f"uid-{name}-{self.world.now}", labels=LABELS))

    @rule(count=st.integers(1, 4), fail=st.booleans())
    def act(self, count: int, fail: bool) -> None:
        """Carry out only the first actions of a plan; the last bind may fail."""
        actions = self.world.decide().actions[:count]
        for action in actions[: -1 if fail else None]:
            self.carry_out(action)
        if fail and actions and isinstance(actions[-1], Bind):
            bind = actions[-1]
            self.world.state.begin_bind(bind.uid, bind.node)
            self.world.state.end_bind(bind.uid, self.world.now, error="refused", retry_at=self.world.now + 5)
        self.tick(0.01)

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.tick(seconds)

    @rule()
    def settle(self) -> None:
        for _ in range(60):
            plan = self.world.decide()
            actions = plan.actions
            if not actions:
                self.never_two_gangs_that_wait_for_each_other(plan)
                return
            for action in actions:
                self.carry_out(action)
        raise AssertionError(f"still busy: {actions}")

    def carry_out(self, action: object) -> None:
        if isinstance(action, TellToLeave):
            self.never_a_victim_of_equal_or_higher_priority(action)
        self.world.carry_out(action)

    def never_a_victim_of_equal_or_higher_priority(self, action: TellToLeave) -> None:
        """Nor one without a waiting gang that then fits; a gang that does not run may yield to an earlier one."""
        victim = action.placement.spec.gang
        if action.reason == "NoSpare":
            return
        nodes = {slot.node for slot in action.placement.spec.slots}
        waiting = [
            placement.spec.gang
            for placement in self.world.placements.values()
            if placement.spec.preempting and nodes & {slot.node for slot in placement.spec.slots}
        ]
        if action.reason == "Preempted":
            assert any(self.priorities[gang] > self.priorities[victim] for gang in waiting), (victim, waiting)
        else:
            backfilled = action.reason == "Backfilled" and action.placement.spec.backfill is not None
            runs = len(self.world.nodes_of(victim)) == self.sizes[victim]
            assert backfilled or not runs, "a gang that runs has to yield"
            order = self.world.gang(victim).order
            assert any(self.world.gang(gang).order < order for gang in waiting), (victim, waiting)

    @rule()
    def new_scheduler(self) -> None:
        """A new leader knows what the API server holds, and nothing else."""
        self.world.forget_all()

    @invariant()
    def never_another_plan_without_memo(self) -> None:
        self.world.never_another_plan_without_memo()

    @invariant()
    def never_over_capacity(self) -> None:
        used: Counter[str] = Counter()
        for pod in self.world.pods.values():
            if pod.spec.node_name:
                used[pod.spec.node_name] += self.gpus.get(pod.metadata.labels["muster.dev/gang"], 0)
        assert all(count <= 8 for count in used.values()), used

    @invariant()
    def never_a_slot_promised_twice(self) -> None:
        promised: Counter[str] = Counter()
        for placement in self.world.placements.values():
            if placement.status.phase not in ("Released", "Preempting") and not placement.spec.preempting:
                for slot in placement.spec.slots:
                    present = self.world.nodes.get(slot.node)
                    if present is not None and present.uid == slot.node_uid:
                        promised[slot.node] += self.gpus[placement.spec.gang]
        assert all(count <= 8 for count in promised.values()), promised

    @invariant()
    def never_a_gang_waits_for_nodes_that_others_keep(self) -> None:
        """If others have to yield to a gang, all of it fits beside the rest."""
        for placement in self.world.placements.values():
            if not placement.spec.preempting or placement.status.phase == "Preempting":
                continue
            gang = placement.spec.gang
            for slot in placement.spec.slots:
                used = self.gpus[gang]
                for other in self.world.placements.values():
                    name = other.spec.gang
                    stays = name != gang and other.status.phase not in ("Released", "Preempting")
                    stays = stays and self.priorities[name] >= self.priorities[gang]
                    stays = stays and len(self.world.nodes_of(name)) == self.sizes[name]
                    if stays and slot.node in {each.node for each in other.spec.slots}:
                        used += self.gpus[name]
                assert used <= 8 or slot.node not in self.world.nodes, (gang, slot)

    @invariant()
    def never_a_filler_in_a_held_slot(self) -> None:
        """A node's pods belong to gangs whose placement names the node."""
        for pod in self.world.pods.values():
            if pod.spec.node_name:
                gang = pod.metadata.labels["muster.dev/gang"]
                placement = self.world.placements.get(f"default/{gang}")
                assert placement is not None, pod.name
                assert pod.spec.node_name in {slot.node for slot in placement.spec.slots}, pod.name

    @invariant()
    def never_two_slots_on_a_node(self) -> None:
        for placement in self.world.placements.values():
            nodes = [slot.node for slot in placement.spec.slots]
            assert len(nodes) == len(set(nodes)), (placement.spec.gang, nodes)

    @invariant()
    def never_another_view_than_a_new_leader_has(self) -> None:
        """What was kept up to date change by change is what a scheduler knows that has just listed everything."""
        fresh = self.world.listed().snapshot()
        asked = {key for pod in self.world.pods.values() for key in pod.spec.node_selector}
        assert nodes_seen(self.world.state.snapshot(), asked) == nodes_seen(fresh, asked)

    @invariant()
    def never_part_bound_past_the_deadline(self) -> None:
        """Given time and a working API server, every gang ends whole, or without any newly bound member."""
        for gang, size in self.sizes.items():
            placement = self.world.placements.get(f"default/{gang}")
            if placement is None:
                assert not self.world.nodes_of(gang)
            elif placement.status.phase == "Bound":
                assert len({slot.slot for slot in placement.spec.slots}) == size

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for name in NODES:
            if name not in self.world.nodes:
                self.world.set_node(node(name, uid=f"uid-{name}-again", labels=LABELS))
            else:
                self.world.set_node(node(name, uid=self.world.nodes[name].uid, labels=LABELS))
        for _ in range(8):  # deadlines pass, owners make what was released again, and those that are to leave do
            self.settle()
            for gang in list(self.sizes):
                self.obey(gang, True)
            self.settle()
            for gang in list(self.sizes):
                self.make_missing(gang)
            self.tick(31)
        self.settle()
        self.never_deadlocked()

    def never_deadlocked(self) -> None:
        """At the end every gang is whole or holds nothing; none waits while there is room for the first in the queue.

        One that lost nodes after it was bound keeps its healthy slots, but only while there is no room for the rest.
        """
        plan = self.world.decide()
        free = sum((8 - self.used(name)) // 8 for name in self.world.nodes)
        for gang, size in self.sizes.items():
            bound = len(self.world.nodes_of(gang))
            if bound not in (0, size):
                assert reason_of(plan, self.world, gang) == "NotEnoughNodes", (gang, bound)
                assert size - bound > free, (gang, bound, free)
        waiting = [gang for gang in self.sizes if not self.world.nodes_of(gang)]
        whole = [gang for gang in waiting if self.gpus[gang] == 8 and f"default/{gang}" not in self.world.placements]
        if whole and len(whole) == len(waiting):
            first = min(whole, key=lambda gang: self.world.gang(gang).order)
            assert self.sizes[first] > free, (first, self.sizes[first], free)

    def never_two_gangs_that_wait_for_each_other(self, plan: Plan) -> None:
        """The nodes that later gangs hold without running are not enough for the first one that lost some."""
        ready = [name for name, each in self.world.nodes.items() if each.ready]
        stuck = [
            gang
            for gang in self.sizes
            if self.world.nodes_of(gang) and reason_of(plan, self.world, gang) == "NotEnoughNodes"
        ]
        stuck = sorted((gang for gang in stuck if self.gpus[gang] == 8), key=lambda gang: self.world.gang(gang).order)
        if len(stuck) > 1:
            later = {node for gang in stuck[1:] for node in self.world.nodes_of(gang).values()}
            enough = sum(name in later or not self.used(name) for name in ready)
            assert self.sizes[stuck[0]] - len(self.world.nodes_of(stuck[0])) > enough, stuck

    def used(self, name: str) -> int:
        return sum(
            self.gpus[pod.metadata.labels["muster.dev/gang"]]
            for pod in self.world.pods.values()
            if pod.spec.node_name == name
        )


@pytest.mark.slow
def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(
        Cluster,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in Phase if phase is not Phase.explain],  # tracing makes it too slow
        ),
    )
