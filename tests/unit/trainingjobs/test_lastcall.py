"""Who is asked for a checkpoint before ranks are stopped on purpose, and how long that is waited for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.training_job_status import Progress
from muster.trainingjobs.plan import DeletePod, WriteStatus
from tests.unit.trainingjobs.world import World, make_job, moment


def reporting(**spec: object) -> World:
    """A job that runs, whose ranks talk to the SDK."""
    world = World(make_job(2, checkpoint={"path": "/c"}, **spec)).started()
    world.progress = Progress(step=7, time=moment(world.now))
    world.control()
    assert world.directive is not None
    assert not world.directive.checkpoint_now
    return world


def asked(world: World) -> bool:
    world.control()
    return world.directive is not None and world.directive.checkpoint_now


def suspend(world: World, suspended: bool = True) -> None:
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=suspended))


def test_attempt_of_an_evicted_member_continues_until_its_checkpoint() -> None:
    world = reporting()
    world.evict(1)
    assert asked(world)
    world.now += 3
    assert (world.status.phase, world.status.attempt) == ("Running", 1)
    world.checkpoint(8)
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Restarting", 2)
    assert world.status.faults[-1].rule == "evicted"
    assert world.directive is not None
    assert not world.directive.checkpoint_now


def test_without_a_checkpoint_it_is_replaced_when_half_of_the_grace_is_over() -> None:
    world = reporting()
    world.evict(1)
    assert asked(world)
    assert world.plan().wake_at == world.now + 15
    world.now += 14.9
    world.control()
    assert world.status.attempt == 1
    world.now += 0.2
    world.control()
    assert world.status.attempt == 2


@pytest.mark.parametrize("why", ["silent", "stopping", "no checkpoints", "no reports"])
def test_nothing_is_waited_for_where_no_checkpoint_can_come(why: str) -> None:
    world = reporting()
    assert world.job is not None
    uid = world.holder(1).uid
    if why == "silent":
        world.members[uid] = replace(world.members[uid], silent_since=world.now - 5, cut=True)
    elif why == "stopping":
        world.members[uid] = replace(world.members[uid], state="stopping")
    elif why == "no checkpoints":
        status = replace(world.status, fixed_spec=None)
        world.job = replace(world.job, spec=replace(world.job.spec, checkpoint=None), status=status)
    else:
        world.progress = None
    world.evict(1)
    world.control()
    assert world.status.attempt == 2


def test_a_rank_that_fails_meanwhile_ends_the_attempt() -> None:
    world = reporting()
    world.evict(1)
    assert asked(world)
    world.exit_rank(0, 1)
    world.control()
    assert world.status.attempt == 2


def test_a_suspended_job_keeps_its_ranks_until_the_checkpoint_is_there() -> None:
    world = reporting(stopGraceSeconds=20)
    world.now = float(int(world.now) + 1)
    suspend(world)
    assert asked(world)
    assert world.status.phase == "Stopping"
    assert world.directive is not None
    assert (world.directive.desired, world.directive.run is not None) == ("run", True)
    world.now += 5
    assert asked(world)
    assert world.actions(DeletePod) == []
    world.checkpoint(9)
    world.control()
    assert len(world.actions(DeletePod)) == 2
    assert world.directive.desired == "exit"


def test_a_suspended_job_that_saves_nothing_ends_after_its_grace() -> None:
    world = reporting(stopGraceSeconds=20)
    suspend(world)
    world.control()
    world.now += 20.1
    world.control()
    assert len(world.actions(DeletePod)) == 2


def with_new_leader(*, progress_written: bool = True, **spec: object) -> World:
    """A suspended job that still saves; a new leader has heard none of its supervisors and no report."""
    world = reporting(**spec)
    assert world.job is not None
    assert world.progress is not None
    if progress_written:
        written = replace(world.progress, attempt=world.status.attempt)
        world.job = replace(world.job, status=replace(world.status, progress=written))
    world.now = float(int(world.now) + 1)
    suspend(world)
    world.control()
    world.remembered = dict(world.members)
    world.now += 2
    world.restart_controller()
    world.progress = None
    return world


@pytest.mark.parametrize("progress_written", [True, False])
def test_new_leader_lets_a_stopping_job_save_although_it_has_heard_no_report(*, progress_written: bool) -> None:
    world = with_new_leader(progress_written=progress_written, stopGraceSeconds=20)
    assert asked(world)
    world.members = dict(world.remembered)
    world.now += 1
    assert asked(world)
    assert world.actions(DeletePod) == []
    world.checkpoint(9)
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_new_leader_does_not_wait_for_ranks_that_do_not_run() -> None:
    world = with_new_leader(stopGraceSeconds=20)
    assert asked(world)
    world.members = {uid: replace(each, state="stopping") for uid, each in world.remembered.items()}
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_new_leader_waits_no_longer_than_the_grace_of_a_stopping_job() -> None:
    world = with_new_leader(stopGraceSeconds=20)
    assert asked(world)
    world.now += 20
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_new_leader_stops_waiting_for_supervisors_that_do_not_come_back() -> None:
    world = with_new_leader(stopGraceSeconds=600)
    assert asked(world)
    world.now += 46
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_a_suspended_job_without_the_sdk_ends_at_once() -> None:
    world = reporting(stopGraceSeconds=20)
    world.progress = None
    suspend(world)
    world.control()
    assert len(world.actions(DeletePod)) == 2


def test_resumed_while_it_still_saves_it_becomes_a_new_attempt() -> None:
    world = reporting(stopGraceSeconds=20)
    suspend(world)
    world.control()
    suspend(world, False)
    world.until("Running", attempt=2)
    assert [action.status.phase for action in world.actions(WriteStatus)][-1] == "Running"


def test_before_the_time_limit_one_is_asked_for_once() -> None:
    world = reporting(timeLimitSeconds=100, stopGraceSeconds=20)
    start = world.status.start_time
    assert start is not None
    world.now = start.timestamp() + 79
    assert not asked(world)
    world.now += 1.5
    assert asked(world)
    world.checkpoint(9)
    assert not asked(world)
