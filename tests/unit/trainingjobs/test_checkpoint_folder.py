"""A checkpoint folder that cannot be written fails the job before its ranks start, not at its first save."""

from __future__ import annotations

import errno

import pytest

from muster.trainingjobs.plan import RecordEvent
from muster.trainingjobs.supervisor.attempts.writable import REFUSED
from tests.unit.trainingjobs.world import World, make_job


def job_with_folder() -> World:
    return World(make_job(2, checkpoint={"path": "/c"}, backoffLimit=0))


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EACCES, "permission denied for user 7; give this user the right to write there"),
        (errno.EROFS, "mount it with write access"),
        (errno.ENOSPC, "no space is left"),
        (errno.ENOTDIR, "a part of the path is a file"),
    ],
)
def test_folder_that_no_node_can_write_fails_the_job_before_any_rank_starts(number: int, fix: str) -> None:
    world = job_with_folder()
    world.unwritable = dict.fromkeys(world.nodes, number)
    world.until("Failed")
    assert world.directed_run == set()
    assert world.status.faults[-1].rule == "cannot-write"
    assert world.status.faults[-1].cause == "user"
    assert "cannot write to the checkpoint folder /c/job-x" in world.status.message
    assert fix in world.status.message
    assert "--checkpoint" in world.status.message


@pytest.mark.parametrize("number", sorted(REFUSED - {errno.EACCES, errno.EPERM}))
def test_only_a_missing_right_is_called_so(number: int) -> None:
    world = job_with_folder()
    world.unwritable = dict.fromkeys(world.nodes, number)
    world.until("Failed")
    assert "permission" not in world.status.message


def test_one_node_that_cannot_write_is_replaced_and_charged_to_the_infrastructure() -> None:
    world = job_with_folder()
    world.unwritable = {"n1": errno.EROFS}
    world.until("Running", attempt=2)
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.node) == ("cannot-write-here", "infrastructure", "n1")
    assert "read-only" in fault.message
    assert "n1" in world.status.excluded_nodes
    assert "n1" not in {world.holder(slot).spec.node_name for slot in (0, 1)}
    assert world.directed_run == {2}


def test_every_node_that_cannot_write_is_replaced_in_one_restart() -> None:
    world = World(make_job(3, checkpoint={"path": "/c"}), nodes=6)
    world.unwritable = {"n0": errno.EACCES, "n2": errno.EACCES}
    world.until("Running", attempt=2)
    assert set(world.status.excluded_nodes) == {"n0", "n2"}
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1


def test_job_that_has_saved_checkpoints_there_runs_on_and_says_so() -> None:
    """A whole file system may be away for a moment. The job must not fail for that with work behind it."""
    world = job_with_folder().started()
    world.checkpoint(10)
    world.unwritable = dict.fromkeys(world.nodes, errno.EROFS)
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=2)
    (event,) = [each for each in world.actions(RecordEvent) if each.reason == "NotWritable"]
    assert event.warning
    assert "read-only" in event.message


def test_old_answer_about_the_folder_does_not_count_for_the_next_attempt() -> None:
    world = job_with_folder()
    world.unwritable = {"n1": errno.ENOSPC}
    world.until("Restarting", attempt=2)
    world.unwritable = {}
    world.until("Running", attempt=2)
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1
