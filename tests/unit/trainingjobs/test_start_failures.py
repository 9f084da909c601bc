"""Issue 11.24: what no node can start fails the job at once; what one node cannot start is that node's fault."""

from __future__ import annotations

import errno

import pytest

from muster.api.training_job_status import Progress
from muster.trainingjobs.plan import WriteStatus
from tests.unit.trainingjobs.world import World, make_job, moment


def running(replicas: int = 2) -> World:
    return World(make_job(replicas)).started()


@pytest.mark.parametrize(
    ("error", "program", "fix"),
    [
        (errno.ENOENT, "mpiexec", "the image needs MPICH, Intel MPI or Open MPI"),
        (errno.ENOENT, "python", "install it in the image"),
        (errno.EACCES, "./train.sh", "chmod +x it"),
        (errno.ENOEXEC, "./train", "#!/bin/sh"),
        (errno.E2BIG, "python", "put long values into a file"),
    ],
)
def test_program_that_no_node_can_execute_fails_the_job_at_once(error: int, program: str, fix: str) -> None:
    world = running()
    for slot in (0, 1):
        world.exit_rank(slot, 127, rank=-1, errno=error, program=program)
    world.control()
    assert world.status.phase == "Failed"
    (condition,) = [each for each in world.status.conditions if each.type == "Failed"]
    assert condition.reason == "CannotStart"
    assert program in world.status.message
    assert fix in world.status.message
    assert world.status.faults[-1].rule == "cannot-start"
    assert world.status.attempt == 1
    assert world.status.restarts is None


def test_one_node_that_cannot_execute_it_is_replaced_and_charged_to_the_infrastructure() -> None:
    world = running()
    node = world.holder(1).spec.node_name
    world.exit_rank(1, 127, rank=-1, errno=errno.ENOENT, program="mpiexec")
    world.control()
    assert world.status.phase == "Running", "the others may still say so"
    world.step(6.0)
    world.control()
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.node) == ("cannot-start-here", "infrastructure", node)
    assert node in world.status.excluded_nodes
    world.until("Running", attempt=2)
    assert world.holder(1).spec.node_name != node


def test_exit_code_127_on_every_node_before_the_first_step_fails_the_job_at_once() -> None:
    world = running()
    for slot in (0, 1):
        world.exit_rank(slot, 127, tail="train.sh: line 2: pythn: command not found")
    world.control()
    assert world.status.phase == "Failed"
    assert "pythn: command not found" in world.status.message


def fails_on_slot_0(world: World) -> str:
    """A command is not found there, while the other node runs on; the node's name."""
    node = world.holder(0).spec.node_name
    world.exit_rank(0, 127, tail="train.sh: line 2: pythn: command not found")
    world.control()
    assert world.status.phase == "Running", "the other node may still say so"
    world.step(6.0)
    world.control()
    return str(node)


def test_exit_code_127_on_one_node_alone_is_that_nodes_fault() -> None:
    world = running()
    node = fails_on_slot_0(world)
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.node) == ("cannot-start-here", "infrastructure", node)
    assert "pythn: command not found" in fault.message
    assert node in world.status.excluded_nodes
    world.until("Running", attempt=2)
    assert world.holder(0).spec.node_name != node


def test_exit_code_127_that_moves_to_another_node_is_the_programs() -> None:
    world = running()
    fails_on_slot_0(world)
    world.until("Running", attempt=2)
    world.step()
    node = fails_on_slot_0(world)
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause) == ("rank-failed", "user")
    assert node not in world.status.excluded_nodes


def test_a_second_node_that_says_so_a_moment_later_makes_it_everywhere() -> None:
    """With mpiexec the first node's rank keeps its launcher waiting for as long."""
    world = running()
    world.exit_rank(0, 127)
    world.control()
    world.step(3.0)
    world.exit_rank(1, 127)
    world.control()
    assert world.status.phase == "Failed"
    assert world.status.faults[-1].rule == "cannot-start"


def test_exit_code_127_after_the_first_step_is_the_programs_and_decides_at_once() -> None:
    world = running()
    world.progress = Progress(step=1, time=moment(world.now))
    world.exit_rank(0, 127)
    world.control()
    assert world.status.phase == "Restarting"
    assert world.status.faults[-1].cause == "user"


def test_another_failure_while_nodes_are_waited_for_decides_at_once() -> None:
    world = running()
    world.exit_rank(1, 127, rank=-1, errno=errno.ENOENT, program="mpiexec")
    world.evict(0)
    world.control()
    assert world.status.phase == "Restarting"
    assert any(isinstance(action, WriteStatus) and action.reason == "Restarting" for action in world.log)
