"""What must never happen to a job, whatever breaks, and wherever the controller dies."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.api.training_job_status import Restarts
from muster.trainingjobs.faults.rules import row_named
from muster.trainingjobs.plan import CreatePod, DeletePod, Direct, WriteStatus
from muster.trainingjobs.pods.slots import attempt_of, slot_of
from tests.unit.trainingjobs.world import Crash, World, make_job

SIZE = 3
Fault = tuple[str, int]
FAULTS = st.tuples(
    st.sampled_from(["rank", "sigkill", "peer", "node", "evict", "reject", "return", "crash", "wait"]),
    st.integers(0, SIZE - 1),
)
STORIES = st.lists(st.tuples(FAULTS, st.integers(0, 6)), min_size=1, max_size=6)
CRASHES = st.lists(st.integers(0, 4), max_size=4)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Watched(World):
    """A world that checks every action before it takes effect."""

    def __init__(self) -> None:
        super().__init__(make_job(SIZE, backoffLimit=100, unknownLimit=100, infrastructureLimit=100), nodes=SIZE + 3)
        self.lost_once: set[str] = set()

    def act(self, action: object) -> None:
        if isinstance(action, Direct) and action.directive.desired == "run":
            assert self.status.phase == "Running", "a run directive before its attempt is written as Running"
            assert self.status.attempt == action.directive.attempt, "a run directive of an attempt that is not written"
        if isinstance(action, CreatePod):
            assert self.status.attempt == action.attempt, "a pod of an attempt that is not written"
            assert self.status.phase != "Running", "a pod is made while an attempt runs"
        if isinstance(action, DeletePod):
            pod = self.pods.get(action.name)
            assert pod is None or not self.is_healthy(action.name), "a healthy slot's pod is deleted"
        if isinstance(action, WriteStatus):
            assert action.status.attempt in (self.status.attempt, self.status.attempt + 1), "attempts go one by one"
        super().act(action)  # type: ignore[arg-type]
        self.check()

    def is_healthy(self, name: str) -> bool:
        pod = self.pods[name]
        node = pod.spec.node_name
        newest = attempt_of(pod) == max(
            attempt_of(each) for each in self.pods.values() if slot_of(each) == slot_of(pod)
        )
        alive = bool(node) and node not in self.dead and self.nodes[node].ready and node not in self.lost_once
        return newest and alive and pod.status.phase == "Running" and not pod.terminating

    def check(self) -> None:
        restarts = self.status.restarts or Restarts()
        assert restarts.total == restarts.user + restarts.infrastructure + restarts.unknown
        assert min(restarts.user, restarts.infrastructure, restarts.unknown) >= 0
        for fault in self.status.faults:
            assert fault.cause == row_named(fault.rule).cause
        alive = {pod.uid for pod in self.pods.values() if pod.spec.node_name not in self.dead}
        running = [each.attempt for uid, each in self.members.items() if uid in alive and each.state == "running"]
        assert len(set(running)) <= 1, "ranks of two attempts run at once"

    def happen(self, kind: str, slot: int) -> None:
        holders = [pod for pod in self.pods.values() if slot_of(pod) == slot]
        pod = max(holders, key=attempt_of) if holders else None
        member = self.members.get(pod.uid) if pod is not None else None
        node = pod.spec.node_name if pod is not None else ""
        if kind in ("rank", "sigkill", "peer") and member is not None and member.state == "running":
            tail = "Connection reset by peer" if kind == "peer" else "boom"
            self.exit_rank(slot, 137 if kind == "sigkill" else 1, 9 if kind == "sigkill" else 0, tail)
        elif kind == "node" and node and len(self.dead) < 2:
            self.lost_once = self.lost_once | {node}
            self.kill_node(node)
        elif kind == "evict" and pod is not None and node and node not in self.dead and not pod.terminating:
            self.evict(slot)
        elif kind == "reject" and pod is not None and node and node not in self.dead and not pod.finished:
            self.fail_pod(slot, "OutOfcpu")
        elif kind == "return" and self.dead:
            name = sorted(self.dead)[0]
            self.node_ready(name, True)
            for other in [each for each in self.pods.values() if each.spec.node_name == name]:
                self.gone(other.name)  # a node that starts again runs nothing


def live(world: World, steps: int, crashes: list[int]) -> None:
    for _ in range(steps):
        with contextlib.suppress(Crash):
            world.control(crash_after=crashes.pop() if crashes else None)
        world.step()
        for pod in world.pods.values():
            if pod.uid in world.members:
                assert pod.spec.node_name not in world.dead or world.members[pod.uid].silent_since is not None


@pytest.mark.slow
@quick
@given(STORIES, CRASHES)
def test_job_runs_again_after_any_fault_and_any_controller_restart(
    story: list[tuple[Fault, int]], crashes: list[int]
) -> None:
    world = Watched()
    crashes = list(crashes)
    live(world, 2, crashes)
    for (kind, slot), steps in story:
        if kind == "crash":
            world.restart_controller()
        else:
            world.happen(kind, slot)
        live(world, steps, crashes)
    for name in list(world.dead):
        world.node_ready(name, False)  # the node controller notices
        world.dead.add(name)
    live(world, 150, [])
    assert world.status.phase == "Running", world.status.message
    members = [world.members[world.holder(slot).uid] for slot in range(SIZE)]
    assert {(member.state, member.attempt) for member in members} == {("running", world.status.attempt)}


@quick
@given(st.integers(0, SIZE - 1), st.permutations(range(SIZE)), st.sampled_from(["Connection reset by peer", "boom"]))
def test_the_user_is_never_charged_for_a_lost_node(lost: int, order: list[int], tail: str) -> None:
    world = World(make_job(SIZE, backoffLimit=0, unknownLimit=0), nodes=SIZE + 1).started()
    world.kill_node(world.holder(lost).spec.node_name)
    for slot in order:
        if slot != lost:
            world.exit_rank(slot, 1, tail=tail)
            world.control()
    world.until("Running", attempt=2)
    restarts = world.status.restarts
    assert restarts is not None
    assert (restarts.user, restarts.unknown, restarts.infrastructure) == (0, 0, 1)


@pytest.mark.slow
@quick
@given(st.integers(1, 12))
def test_a_controller_that_dies_at_any_action_of_a_restart_repeats_nothing(crash_after: int) -> None:
    world = World(make_job(SIZE), nodes=SIZE + 1).started()
    world.kill_node(world.holder(1).spec.node_name)
    live(world, 40, [crash_after] * 3)
    live(world, 60, [])
    assert (world.status.phase, world.status.attempt) == ("Running", 2)
    assert sorted(pod.name for pod in world.pods.values() if not pod.terminating) == ["job-0-1", "job-1-2", "job-2-1"]
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1


@pytest.mark.slow
@quick
@given(st.lists(st.text(max_size=3000), min_size=1, max_size=12))
def test_the_status_never_outgrows_its_bound(tails: list[str]) -> None:
    world = World(make_job(2, backoffLimit=100, unknownLimit=100)).started()
    for tail in tails:
        world.exit_rank(0, 137, signal=9, tail=tail)  # not the program's fault: no pause before the restart
        world.until("Running", 400, attempt=world.status.attempt + 1)  # `act` checks the size of every write
        world.step()
    assert len(world.status.faults) == min(8, len(tails))
