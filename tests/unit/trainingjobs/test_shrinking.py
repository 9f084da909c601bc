"""A job that lost nodes without a spare continues with fewer, and later with all of them again."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.placement import GivenUpSlot, Placement, PlacementSpec, PlacementStatus
from muster.api.training_job_status import Progress
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.trainingjobs.plan import CreatePod, DeletePod, Direct, RecordEvent, WriteStatus
from muster.trainingjobs.pods.pod import excluded_nodes
from muster.trainingjobs.pods.slots import attempt_of, slot_of
from tests.unit.trainingjobs.test_never import CRASHES, STORIES, live, quick
from tests.unit.trainingjobs.world import Crash, World, make_job, make_node, moment

SIZE, FEWEST = 3, 2


class Shrinking(World):
    """Its scheduler gives slots up where no node is spare, and lets their pods join where one is."""

    def __init__(self, nodes: int = SIZE, **spec: object) -> None:
        limits = {"backoffLimit": 100, "unknownLimit": 100, "infrastructureLimit": 100}
        job = make_job(SIZE, noSpare="Shrink", minReplicas=FEWEST, launcher="none", **{**limits, **spec})
        super().__init__(job, nodes=nodes)
        self.given_up: dict[int, int] = {}
        self.was_bound = False

    def act(self, action: object) -> None:
        if isinstance(action, Direct) and action.directive.run is not None:
            assert len(action.directive.run.hosts) >= FEWEST, "an attempt runs with fewer nodes than the job needs"
            hosts = {host.slot for host in action.directive.run.hosts}
            assert hosts == set(range(SIZE)) - set(self.status.left_out), "who takes part is not what the status says"
        if isinstance(action, WriteStatus):
            status = action.status
            assert status.attempt in (self.status.attempt, self.status.attempt + 1), "attempts go one by one"
            assert status.size == SIZE - len(status.left_out)
            if status.phase == "Running" != self.status.phase:
                asked = {slot_of(pod) for pod in self.pods.values() if attempt_of(pod) == status.attempt}
                assert set(status.left_out) <= asked, "it continues without a slot that did not ask for a node"
        if isinstance(action, CreatePod) and self.status.phase == "Running":
            assert action.slot in self.status.left_out, "a pod is made while its slot takes part"
        super().act(action)  # type: ignore[arg-type]

    def schedule(self) -> None:
        newest: dict[int, Pod] = {}
        for pod in self.pods.values():
            if not pod.terminating and not pod.finished:
                newest[slot_of(pod)] = max(newest.get(slot_of(pod), pod), pod, key=attempt_of)
        asking = {slot: pod for slot, pod in newest.items() if not self.joins(pod)}
        if set(asking) | set(self.given_up) == set(range(SIZE)):
            waiting = [pod for pod in asking.values() if not pod.spec.node_name]
            free = self.free()
            found = {pod.name: node for pod in waiting if (node := self.pick(pod, free))}
            short = [pod for pod in waiting if pod.name not in found]
            out = {slot: attempt for slot, attempt in self.given_up.items() if slot not in asking}
            if not short or (self.was_bound and SIZE - len(out) - len(short) >= FEWEST):
                for name, node in found.items():
                    self.bind(name, node)
                self.was_bound = True
                self.given_up = out | {slot_of(pod): attempt_of(pod) for pod in short}
        free = self.free()
        for slot, pod in newest.items():
            if self.joins(pod) and not pod.spec.node_name and (node := self.pick(pod, free)):
                self.bind(pod.name, node)
                del self.given_up[slot]
        spec = PlacementSpec(
            gang="job",
            gang_uid="job-uid",
            size=SIZE - len(self.given_up),
            given_up=tuple(GivenUpSlot(slot=slot, attempt=attempt) for slot, attempt in self.given_up.items()),
        )
        metadata = ObjectMeta(name="job", namespace="ns")
        self.placement = Placement(metadata=metadata, spec=spec, status=PlacementStatus(phase="Bound"))

    def joins(self, pod: Pod) -> bool:
        return not pod.spec.node_name and attempt_of(pod) <= self.given_up.get(slot_of(pod), -1)

    def free(self) -> list[str]:
        taken = {pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name and not pod.finished}
        return [name for name, node in self.nodes.items() if node.ready and name not in self.dead and name not in taken]

    def pick(self, pod: Pod, free: list[str]) -> str:
        node = next((name for name in free if name not in excluded_nodes(pod)), "")
        if node:
            free.remove(node)
        return node

    def bind(self, name: str, node: str) -> None:
        pod = self.pods[name]
        self.pods[name] = replace(pod, spec=replace(pod.spec, node_name=node))

    # -- shorthands

    def shrunk(self, *, step: int | None = 7) -> Shrinking:
        """It runs on two nodes as attempt 2, and has saved a checkpoint, unless `step` is None."""
        self.started()
        if step is not None:
            self.progress = Progress(step=step, time=moment(self.now))
            self.checkpoint(step)
        self.kill_node(self.holder(1).spec.node_name)
        self.until("Running", attempt=2)
        self.passes(3)
        return self

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step()
            self.control()

    def add_node(self, name: str = "new") -> None:
        self.nodes[name] = make_node(name)

    def hosts(self) -> list[int]:
        assert self.directive is not None
        assert self.directive.run is not None
        return [host.slot for host in self.directive.run.hosts]


def test_it_continues_with_the_nodes_that_are_left() -> None:
    world = Shrinking().shrunk()
    assert world.hosts() == [0, 2]
    status = world.status
    assert (status.size, status.left_out, status.ready_slots, status.attempt) == (2, (1,), 2, 2)
    assert "2 of 3 nodes" in status.message
    assert [action.reason for action in world.actions(RecordEvent)].count("Shrunk") == 1
    assert status.restarts is not None
    assert (status.restarts.infrastructure, status.restarts.total) == (1, 1)
    for slot in (0, 2):
        world.exit_rank(slot, 0)
    world.until("Succeeded")


def test_placement_lost_before_the_smaller_attempt_runs_changes_nothing() -> None:
    world = Shrinking().started()
    world.checkpoint(7)
    supervise = world.supervise
    world.supervise = lambda pod: None if slot_of(pod) == 2 else supervise(pod)  # type: ignore[method-assign]
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Restarting")
    world.passes(10)
    assert world.given_up == {1: 2}
    status = world.status
    assert (status.phase, status.left_out, status.size) == ("Restarting", (1,), 2)
    world.placement = None
    world.schedule = lambda: None  # type: ignore[method-assign]
    world.supervise = supervise  # type: ignore[method-assign]
    world.until("Running", attempt=2)
    assert world.hosts() == [0, 2]


def test_slot_that_gets_a_node_before_the_attempt_runs_takes_part_in_it() -> None:
    world = Shrinking().started()
    world.checkpoint(7)
    supervise = world.supervise
    world.supervise = lambda pod: None if slot_of(pod) == 2 else supervise(pod)  # type: ignore[method-assign]
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Restarting")
    world.passes(10)
    assert world.status.left_out == (1,)
    world.add_node()
    world.passes(3)
    assert (world.status.left_out, world.status.size) == ((), 3)
    world.supervise = supervise  # type: ignore[method-assign]
    world.until("Running", attempt=2)
    assert world.hosts() == [0, 1, 2]


def test_it_waits_while_fewer_are_left_than_it_needs() -> None:
    world = Shrinking().started()
    world.kill_node(world.holder(1).spec.node_name)
    world.kill_node(world.holder(2).spec.node_name)
    world.until("Restarting")
    world.passes(100)
    assert (world.status.phase, world.status.left_out) == ("Restarting", ())
    world.add_node()
    world.until("Running")
    assert world.status.size == 2


def test_a_node_that_comes_is_taken_at_the_next_checkpoint() -> None:
    world = Shrinking().shrunk()
    assert slot_of(world.pods["job-1-2"]) == 1  # it asks for a node meanwhile
    world.add_node()
    world.passes(4)
    assert world.status.attempt == 2
    assert world.directive is not None
    assert world.directive.checkpoint_now
    world.checkpoint(9)
    world.until("Running", attempt=3)
    assert world.hosts() == [0, 1, 2]
    assert (world.status.size, world.status.left_out) == (3, ())
    assert [fault.attempt for fault in world.status.faults] == [1]
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1  # no budget is charged
    assert not world.directive.checkpoint_now


def test_a_checkpoint_from_before_the_node_was_ready_ends_nothing() -> None:
    world = Shrinking().shrunk()
    world.checkpoint(8)
    world.passes(1)
    world.add_node()
    world.passes(10)
    assert (world.status.phase, world.status.attempt) == ("Running", 2)


def test_without_checkpoints_it_asks_again_only_at_its_next_restart() -> None:
    world = Shrinking().shrunk(step=None)
    assert "job-1-2" not in world.pods
    world.add_node()
    world.passes(20)
    assert (world.status.attempt, world.status.size) == (2, 2)
    world.exit_rank(0, 1, tail="boom")
    world.until("Running", attempt=3)
    assert (world.status.size, world.hosts()) == (3, [0, 1, 2])


def test_the_lost_node_itself_may_come_back() -> None:
    world = Shrinking().shrunk()
    (lost,) = world.dead
    for name in [name for name, pod in world.pods.items() if pod.spec.node_name == lost]:
        world.gone(name)
    world.node_ready(lost, True)
    world.passes(70)
    assert world.holder(1).spec.node_name == lost
    world.checkpoint(9)
    world.until("Running", attempt=3)
    assert world.status.size == 3


def test_fault_outside_the_attempt_does_not_end_it() -> None:
    world = Shrinking().shrunk()
    world.add_node()
    world.passes(1)
    world.fail_pod(1, "OutOfcpu")
    world.passes(5)
    assert (world.status.phase, world.status.attempt) == ("Running", 2)
    assert "new" in world.status.excluded_nodes
    world.add_node("newer")
    world.passes(5)
    world.checkpoint(9)
    world.until("Running", attempt=3)
    assert world.holder(1).spec.node_name == "newer"


def test_each_restart_asks_for_all_nodes_again() -> None:
    world = Shrinking().shrunk()
    world.exit_rank(2, 1, tail="boom")
    world.until("Running", 10, attempt=3)
    assert world.status.left_out == (1,)
    assert "job-1-3" in world.pods
    assert "job-1-2" not in world.pods


def test_end_for_growth_is_not_late_evidence_of_the_previous_fault() -> None:
    world = Shrinking().shrunk()
    before = world.status.faults
    world.add_node()
    world.passes(4)
    world.checkpoint(9)
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Restarting", 3)
    world.kill_node(world.holder(2).spec.node_name)
    world.until("Running", 200)
    assert [(fault.rule, fault.slot, fault.slots) for fault in world.status.faults[:1]] == [
        (fault.rule, fault.slot, fault.slots) for fault in before
    ]


def test_its_restart_is_reckoned_by_those_that_take_part() -> None:
    world = Shrinking().shrunk()
    fault = world.status.faults[-1]
    assert (fault.slots, world.status.slots_kept) == (0, 2)
    assert fault.timeline is not None
    assert None not in (fault.timeline.stopped, fault.timeline.placed, fault.timeline.ready, fault.timeline.running)


@pytest.mark.slow
@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_a_controller_that_dies_at_any_action_of_a_growth_grows_once(crashes: list[int]) -> None:
    world = Shrinking().shrunk()
    world.add_node()
    world.passes(4)
    world.checkpoint(9)
    for crash in crashes:
        with contextlib.suppress(Crash):
            world.control(crash_after=crash)
        world.step()
        if world.status.attempt == 2:
            world.checkpoint(10)
    for _ in range(60):
        live(world, 1, [])
        if world.status.attempt == 2:
            world.checkpoint(11)
    assert (world.status.phase, world.status.attempt, world.status.size) == ("Running", 3, 3)
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1


def happen(world: Shrinking, kind: str, slot: int) -> None:
    """What can befall a slot, or the cluster."""
    holders = [pod for pod in world.pods.values() if slot_of(pod) == slot]
    pod = max(holders, key=attempt_of) if holders else None
    node = pod.spec.node_name if pod is not None else ""
    member = world.members.get(pod.uid) if pod is not None else None
    alive = pod is not None and bool(node) and node not in world.dead and not pod.terminating and not pod.finished
    if kind in ("rank", "sigkill", "peer") and member is not None and member.state == "running" and alive:
        world.exit_rank(slot, 1, tail="boom")
    elif kind == "node" and alive and len(world.dead) < 2:
        world.kill_node(node)
    elif kind == "evict" and alive:
        world.evict(slot)
    elif kind == "reject" and alive:
        world.fail_pod(slot, "OutOfcpu")
    elif kind == "return" and world.dead:
        name = sorted(world.dead)[0]
        for other in [each for each in world.pods.values() if each.spec.node_name == name]:
            world.gone(other.name)
        world.node_ready(name, True)
    elif kind == "wait" and world.status.phase == "Running":
        world.checkpoint(1)


@pytest.mark.slow
@quick
@given(STORIES, CRASHES)
def test_job_runs_again_after_any_fault_and_never_below_its_minimum(
    story: list[tuple[tuple[str, int], int]], crashes: list[int]
) -> None:
    world = Shrinking(nodes=SIZE + 1)
    crashes = list(crashes)
    live(world, 4, crashes)
    for (kind, slot), steps in story:
        if kind == "crash":
            world.restart_controller()
        else:
            happen(world, kind, slot)
        live(world, steps, crashes)
    for name in list(world.dead):
        world.node_ready(name, False)
        world.dead.add(name)
    live(world, 150, [])
    assert world.status.phase == "Running", world.status.message
    members = [world.members[world.holder(slot).uid] for slot in range(SIZE) if slot not in world.status.left_out]
    assert {(member.state, member.attempt) for member in members} == {("running", world.status.attempt)}


def test_pods_outside_are_deleted_with_the_job_that_ends() -> None:
    world = Shrinking().shrunk()
    world.log.clear()
    for slot in (0, 2):
        world.exit_rank(slot, 0)
    world.until("Succeeded")
    assert [action.name for action in world.actions(DeletePod)] == ["job-1-2"]
