"""A job that is asked to leave saves its work, frees its nodes, and waits again; no budget is charged."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.training_job_status import Progress, Restarts
from muster.trainingjobs.plan import CreatePod, DeletePod, WriteStatus
from tests.unit.trainingjobs.test_never import live, quick
from tests.unit.trainingjobs.world import Crash, World, make_job, moment


def running(**spec: object) -> World:
    return World(make_job(2, checkpoint={"path": "/c"}, stopGraceSeconds=20, **spec)).started()


def reporting() -> World:
    world = running()
    world.progress = Progress(step=7, time=moment(world.now))
    world.control()
    world.now = float(int(world.now) + 1)  # conditions have whole seconds
    return world


def test_it_gives_all_nodes_back_and_waits_again_as_the_next_attempt() -> None:
    world = running()
    world.asked_to_leave()
    world.control()
    assert world.status.phase == "Stopping"
    assert "preempted by ns/urgent (priority 5)" in world.status.message
    assert len(world.actions(DeletePod)) == 2
    world.log.clear()
    world.control()
    assert world.actions(CreatePod) == []  # no new pod before the last one is gone
    world.now += 1
    for name in list(world.pods):
        world.gone(name)
    world.control()
    assert (world.status.phase, world.status.attempt, world.status.preemptions) == ("Pending", 2, 1)
    assert "preempted by ns/urgent" in next(each.message for each in reversed(world.history) if each.attempt == 2)
    assert [action.attempt for action in world.actions(CreatePod)] == [2, 2]


def test_no_cause_is_charged() -> None:
    world = running(backoffLimit=0, infrastructureLimit=0, unknownLimit=0)
    for attempt in (2, 3):
        world.asked_to_leave()
        world.control()
        world.step()
        world.until("Running", attempt=attempt)
    restarts = world.status.restarts or Restarts()
    assert (restarts.total, world.status.preemptions, world.status.faults) == (0, 2, ())


def test_its_ranks_go_on_until_their_checkpoint_is_there() -> None:
    world = reporting()
    world.asked_to_leave()
    world.control()
    assert world.directive is not None
    assert (world.directive.desired, world.directive.checkpoint_now) == ("run", True)
    assert world.actions(DeletePod) == []
    world.now += 5
    world.checkpoint(9)
    world.control()
    assert len(world.actions(DeletePod)) == 2
    assert world.directive.desired == "exit"


def test_without_a_checkpoint_it_leaves_after_its_grace() -> None:
    world = reporting()
    world.asked_to_leave()
    world.control()
    world.now += 19
    world.control()
    assert world.actions(DeletePod) == []
    world.now += 1.1
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_a_placement_that_is_still_there_does_not_stop_the_next_attempt() -> None:
    world = running()
    world.asked_to_leave()
    world.control()
    for name in list(world.pods):
        world.gone(name)
    world.control()
    world.control()
    assert (world.status.phase, world.status.attempt, world.status.preemptions) == ("Pending", 2, 1)
    assert len(world.pods) == 2


def test_a_job_that_has_just_succeeded_is_not_stopped() -> None:
    world = running()
    world.exit_rank(0, 0)
    world.asked_to_leave()
    world.control()
    assert world.status.phase == "Succeeded"


def test_a_job_that_holds_its_healthy_nodes_after_a_fault_gives_them_back() -> None:
    world = World(make_job(2), nodes=2).started()
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Restarting", attempt=2)
    world.asked_to_leave("yields to ns/early")
    world.control()
    assert world.status.phase == "Stopping"
    for _ in range(3):
        world.step()
        world.control()
    world.node_ready(next(iter(world.dead)), False)
    for _ in range(60):
        world.step()
        world.control()
        if world.status.phase == "Pending":
            break
    assert (world.status.phase, world.status.preemptions) == ("Pending", 1)
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1  # the lost node's, and no more


@pytest.mark.parametrize("when", ["at once", "while it stops"])
def test_job_suspended_while_leaving_stays_suspended(when: str) -> None:
    world = running()
    world.asked_to_leave()
    if when == "while it stops":
        world.control()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    for _ in range(4):
        world.control()
        world.step()
    assert world.status.phase == "Suspended"
    assert world.pods == {}


@pytest.mark.slow
@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_a_controller_that_dies_at_any_action_counts_it_once(crashes: list[int]) -> None:
    world = running()
    world.asked_to_leave()
    for crash in crashes:
        with contextlib.suppress(Crash):
            world.control(crash_after=crash)
        world.step()
    live(world, 60, [])
    assert (world.status.phase, world.status.attempt, world.status.preemptions) == ("Running", 2, 1)
    assert len({action.status.attempt for action in world.actions(WriteStatus)}) == 2
