"""A backfilled job: what its status, its Events and its ranks say, and that each request to leave counts once."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.training_job_status import BackfillStatus, Progress, Restarts
from muster.trainingjobs.plan import DeletePod, RecordEvent, WriteStatus
from tests.unit.trainingjobs.test_never import live, quick
from tests.unit.trainingjobs.world import Crash, World, make_job, moment

HEAD = "ns/large"
WHY = "gives back nodes on which it was backfilled: ns/large, which is before it in the queue, can start"


def backfilled(**spec: object) -> World:
    """A running job with two nodes that are reserved for another gang; it reports to the controller."""
    world = World(make_job(2, checkpoint={"path": "/c"}, stopGraceSeconds=20, restartable=True, **spec))
    world.reserved_for = HEAD
    world.started()
    world.progress = Progress(step=7, time=moment(world.now))
    world.control()
    world.now = float(int(world.now) + 1)  # conditions have whole seconds
    return world


def ask(world: World) -> None:
    world.asked_to_leave(WHY, "Backfilled")
    world.control()


def leave(world: World) -> None:
    """All pods end; the scheduler then deletes the Placement, and the nodes stay with the other gang."""
    for name in list(world.pods):
        world.gone(name)
    world.control()


def state(world: World) -> BackfillStatus:
    assert world.status.backfill is not None
    return world.status.backfill


def events(world: World, reason: str) -> list[RecordEvent]:
    return [each for each in world.actions(RecordEvent) if each.reason == reason]


def test_status_and_one_event_name_the_gang_for_which_its_nodes_are_reserved() -> None:
    world = backfilled()
    world.control()
    assert state(world).gang == HEAD
    (event,) = events(world, "Backfilled")
    assert HEAD in event.message
    assert not event.warning
    assert world.directive is not None
    assert world.directive.backfilled


def test_a_job_on_other_nodes_says_nothing() -> None:
    world = World(make_job(2)).started()
    assert world.status.backfill is None
    assert events(world, "Backfilled") == []
    assert world.directive is not None
    assert not world.directive.backfilled


def test_gang_is_forgotten_when_the_nodes_are_not_reserved_any_more() -> None:
    world = backfilled()
    world.reserved_for = ""
    world.placement = world.placed()
    world.control()
    assert state(world).gang == ""
    assert world.directive is not None
    assert not world.directive.backfilled


def test_gang_stays_while_the_placement_is_written_again() -> None:
    world = backfilled()
    world.placement = None
    world.control()
    assert state(world).gang == HEAD


def test_new_leader_repeats_neither_event() -> None:
    world = backfilled()
    world.restart_controller()
    world.step()
    world.control()
    assert len(events(world, "Backfilled")) == 1
    ask(world)
    world.restart_controller()
    world.control()
    assert [event.message for event in events(world, "AskedToLeave")] == [WHY]
    assert events(world, "Preempted") == []


def test_job_that_saves_when_asked_loses_nothing() -> None:
    world = backfilled(backoffLimit=0, infrastructureLimit=0, unknownLimit=0)
    world.now += 40
    ask(world)
    assert world.directive is not None
    assert (world.directive.desired, world.directive.checkpoint_now) == ("run", True)
    assert world.actions(DeletePod) == []
    assert (state(world).asked, state(world).gang) == (1, HEAD)
    world.now += 2
    world.checkpoint(9)
    world.control()
    assert len(world.actions(DeletePod)) == 2
    leave(world)
    assert (world.status.phase, world.status.attempt, world.status.preemptions) == ("Pending", 2, 1)
    assert (state(world).gang, state(world).asked, state(world).seconds_lost) == ("", 1, 0.0)
    assert (world.status.restarts or Restarts()).total == 0


def test_job_that_does_not_save_loses_the_time_since_its_last_checkpoint() -> None:
    world = backfilled()
    world.checkpoint(5)
    world.now += 40
    ask(world)
    assert state(world).seconds_lost == 0.0, "it may still save"
    world.now += 20.1
    world.control()
    assert len(world.actions(DeletePod)) == 2
    leave(world)
    assert (state(world).asked, state(world).seconds_lost) == (1, 40.0)


def test_job_without_a_checkpoint_loses_the_time_since_its_ranks_began() -> None:
    world = backfilled()
    running = next(each for each in world.status.conditions if each.type == "Running")
    assert running.last_transition_time is not None
    began = running.last_transition_time.timestamp()
    world.now = began + 90
    ask(world)
    leave(world)
    assert state(world).seconds_lost == 90.0


def test_checkpoint_of_an_earlier_attempt_does_not_save_this_one() -> None:
    world = backfilled()
    world.checkpoint(5)
    ask(world)
    leave(world)
    world.until("Running", attempt=2)
    lost = state(world).seconds_lost
    running = next(each for each in world.status.conditions if each.type == "Running")
    assert running.last_transition_time is not None
    world.now = running.last_transition_time.timestamp() + 30
    ask(world)
    leave(world)
    assert (state(world).asked, state(world).seconds_lost) == (2, lost + 30.0)


def test_job_that_does_not_run_loses_nothing_when_asked() -> None:
    world = backfilled()
    world.exit_rank(0, 0, signal=9)
    world.control()
    assert world.status.phase == "Restarting"
    world.now += 40
    ask(world)
    leave(world)
    assert (state(world).asked, state(world).seconds_lost) == (1, 0.0)


def test_other_preemptions_are_not_counted_as_requests() -> None:
    world = backfilled()
    world.asked_to_leave()
    world.control()
    assert state(world).asked == 0
    leave(world)
    assert (state(world).gang, state(world).asked, world.status.preemptions) == ("", 0, 1)


def test_edited_status_does_not_count_the_same_request_again() -> None:
    world = backfilled()
    ask(world)
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, phase="Running"))
    world.control()
    assert (world.status.phase, state(world).asked) == ("Stopping", 1)


@pytest.mark.parametrize("keep", [True, False])
def test_wiped_status_leads_back_to_running(keep: bool) -> None:
    world = backfilled()
    ask(world)
    assert world.job is not None
    backfill = world.status.backfill if keep else None
    world.job = replace(world.job, status=replace(type(world.status)(), backfill=backfill))
    live(world, 60, [])
    assert world.status.phase == "Running"
    assert state(world).asked <= 2


def test_suspended_or_ended_job_is_not_backfilled() -> None:
    world = backfilled()
    world.exit_rank(0, 0)
    world.control()
    assert (world.status.phase, state(world).gang) == ("Succeeded", "")
    world = backfilled()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.control()
    leave(world)
    assert (world.status.phase, state(world).gang) == ("Suspended", "")


@pytest.mark.slow
@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_controller_that_dies_at_any_action_counts_a_request_once(crashes: list[int]) -> None:
    world = backfilled()
    world.now += 40
    world.asked_to_leave(WHY, "Backfilled")
    for crash in crashes:
        with contextlib.suppress(Crash):
            world.control(crash_after=crash)
        world.step()
    live(world, 60, [])
    assert (world.status.phase, world.status.attempt, world.status.preemptions) == ("Running", 2, 1)
    assert (state(world).asked, state(world).gang) == (1, HEAD)
    assert state(world).seconds_lost >= 40.0
    requests = {each.status.backfill.asked for each in world.actions(WriteStatus) if each.status.backfill is not None}
    assert requests <= {0, 1}
