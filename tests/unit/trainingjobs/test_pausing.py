"""A program that fails again and again is restarted after longer and longer pauses; no other job is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.training_job_status import Progress
from muster.cli.jobs.describe import stages
from muster.trainingjobs.plan import CreatePod
from muster.trainingjobs.snapshot import HardwareEvidence
from tests.unit.trainingjobs.test_never import quick
from tests.unit.trainingjobs.world import World, make_job, moment


def failing(**spec: object) -> World:
    return World(make_job(2, **{"backoffLimit": 100, "infrastructureLimit": 100, **spec})).started()


def fail(world: World) -> float:
    """The program ends with an error; returns the seconds until the next attempt runs."""
    world.step()
    began = world.now
    world.exit_rank(0, 1, tail="KeyError")
    world.until("Running", 500, attempt=world.status.attempt + 1)
    return world.now - began


@pytest.mark.slow
def test_the_first_restart_comes_at_once_and_each_later_one_after_twice_the_pause() -> None:
    world = failing()
    soon = fail(world)
    assert soon < 5
    waited = [fail(world) for _ in range(8)]
    assert [round(seconds - 1, -1) for seconds in waited] == [10, 20, 40, 80, 160, 320, 360, 360]
    assert world.status.backoff is not None
    assert world.status.backoff.failures == 9


def test_the_status_says_when_it_begins_and_why() -> None:
    world = failing()
    fail(world)
    world.exit_rank(0, 1, tail="KeyError")
    world.control()
    assert world.status.phase == "Restarting"
    assert "attempt 3 begins at" in world.status.message
    assert "failed 2 times in a row" in world.status.message
    assert world.plan().wake_at is not None


def test_the_pause_is_a_stage_of_its_own() -> None:
    """Issue 11.26: `status` showed a pause of 20 s as "ready 20.0s"."""
    world = failing()
    for _ in range(3):
        fail(world)
    taken = dict(stages(world.status.faults[-1].timeline))
    assert list(taken) == ["detected", "stopped", "backoff", "placed", "ready", "running"]
    assert taken["backoff"] >= 15
    assert max(seconds for stage, seconds in taken.items() if stage != "backoff") < 5
    first = dict(stages(world.status.faults[0].timeline))
    assert "backoff" not in first


def test_a_pause_of_an_earlier_restart_is_not_a_stage_of_a_later_one() -> None:
    world = failing()
    fail(world)
    fail(world)
    world.step()
    world.kill_node(world.holder(0).spec.node_name)
    world.until("Running", 500, attempt=world.status.attempt + 1)
    assert "backoff" not in dict(stages(world.status.faults[-1].timeline))


@pytest.mark.parametrize("how", ["a step", "a checkpoint", "a long time"])
def test_an_attempt_that_got_further_is_followed_at_once(how: str) -> None:
    world = failing(checkpoint={"path": "/c"})
    world.progress = Progress(step=5, time=moment(world.now))
    world.control()
    for _ in range(3):
        waited = fail(world)
    assert waited >= 20
    if how == "a step":
        world.progress = Progress(step=6, time=moment(world.now))
    elif how == "a checkpoint":
        world.checkpoint(4)
    else:
        world.now += 600
    assert fail(world) < 5
    assert world.status.backoff is not None
    assert world.status.backoff.failures == 1


@quick
@given(st.lists(st.sampled_from(["node", "killed", "evicted"]), min_size=1, max_size=5))
def test_faults_of_others_are_never_delayed(causes: list[str]) -> None:
    world = World(make_job(2, unknownLimit=100), nodes=10).started()
    fail(world)
    for cause in causes:
        world.step()
        began, attempt = world.now, world.status.attempt
        if cause == "node":
            world.kill_node(world.holder(1).spec.node_name)
        elif cause == "killed":
            world.exit_rank(1, 137, signal=9)
        else:
            world.evict(1)
        world.until("Running", attempt=attempt + 1)
        assert world.now - began < 10


def test_a_new_controller_keeps_the_pause() -> None:
    world = failing()
    for _ in range(3):
        fail(world)
    began = world.now
    world.exit_rank(0, 1, tail="KeyError")
    world.control()
    for _ in range(10):
        world.restart_controller()
        world.step()
        world.control()
    world.until("Running", 100, attempt=5)
    assert world.now - began >= 40


def test_evidence_that_it_was_the_hardware_ends_the_pause() -> None:
    world = failing()
    for _ in range(3):
        fail(world)
    world.exit_rank(0, 1, tail="CUDA error")
    world.control()
    world.step()
    node = world.holder(0).spec.node_name
    world.hardware.append(HardwareEvidence(node, world.now, "Xid 79"))
    world.until("Running", 10, attempt=5)
    assert world.status.faults[-1].cause == "infrastructure"
    assert world.status.backoff is not None
    assert world.status.backoff.failures == 3


def test_a_job_that_is_resumed_is_not_held() -> None:
    world = failing()
    fail(world)
    world.exit_rank(0, 1, tail="KeyError")
    world.control()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.until("Suspended")
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=False))
    world.until("Running", 10)
    assert world.status.backoff is None


def test_pods_that_cannot_start_by_the_programs_fault_are_not_recreated_at_once() -> None:
    world = failing()
    fail(world)
    world.exit_rank(0, 1, tail="KeyError")
    world.control()
    assert world.status.faults[-1].cause == "user"
    world.gone(world.holder(1).name)
    world.log.clear()
    world.control()
    assert world.actions(CreatePod) == []
    world.until("Running", 30, attempt=3)
