"""Silence: when it is believed, what a wrong alarm costs, and what a restart writes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.trainingjobs.plan import DeletePod, WriteStatus
from muster.trainingjobs.snapshot import CUT_TIMEOUT_S, EXCLUSION_S, REJOIN_S
from tests.unit.trainingjobs.world import World, make_job


def cut(world: World, slot: int) -> str:
    """The connection to a slot breaks, its machine continues. Returns its node."""
    pod = world.holder(slot)
    member = world.members[pod.uid]
    world.members[pod.uid] = world.remembered[pod.uid] = replace(member, silent_since=world.now, cut=True)
    world.dead.add(pod.spec.node_name)  # says nothing for now
    return pod.spec.node_name


def lost_after(world: World, seconds: float) -> bool:
    """Whether the job has ended its attempt so many seconds from now."""
    world.now += seconds
    world.control()
    return world.status.phase == "Restarting"


def test_a_cut_is_believed_soon_in_quiet_conditions() -> None:
    world = World(make_job(2), nodes=3).started()
    cut(world, 1)
    assert not lost_after(world, CUT_TIMEOUT_S - 0.1)
    assert lost_after(world, 0.1)


def test_patience_restarts_when_this_controller_was_slow() -> None:
    world = World(make_job(2), nodes=3).started()
    cut(world, 1)
    world.strained_at = world.now + 2.0
    assert not lost_after(world, CUT_TIMEOUT_S + 1.0)
    assert world.plan().wake_at == pytest.approx(world.strained_at + CUT_TIMEOUT_S)
    assert lost_after(world, 1.0)


def test_a_controller_that_is_slow_all_the_time_still_finds_lost_nodes() -> None:
    world = World(make_job(2), nodes=3).started()
    cut(world, 1)
    for _ in range(int(REJOIN_S) - 1):
        world.strained_at = world.now + 1
        assert not lost_after(world, 1.0)
    world.strained_at = world.now + 1
    assert lost_after(world, 1.0)


def test_slowness_before_the_silence_does_not_matter() -> None:
    world = World(make_job(2), nodes=3).started()
    world.strained_at = world.now
    world.now += 0.1
    cut(world, 1)
    assert lost_after(world, CUT_TIMEOUT_S)


def test_a_wrong_alarm_without_spare_nodes_is_over_once_the_node_renews_its_lease() -> None:
    world = World(make_job(3), nodes=3).started()
    node = cut(world, 1)
    assert lost_after(world, CUT_TIMEOUT_S)
    assert world.status.excluded_nodes == (node,)
    world.dead.discard(node)
    for _ in range(5):
        world.control()
        world.step()
    assert world.status.phase == "Restarting"  # nothing shows yet that the node is well
    wake_at = world.plan().wake_at
    assert wake_at is not None  # Leases are renewed unheard, so they are looked at again
    assert wake_at < world.now + 10.0
    world.leases[node] = world.now
    world.until("Running", 10, attempt=2)
    assert world.holder(1).spec.node_name == node


def test_own_deletion_is_not_later_evidence() -> None:
    world = World(make_job(3), nodes=3).started()
    cut(world, 1)
    world.now += CUT_TIMEOUT_S
    for action in world.plan().actions:  # the status says that the slot is lost
        world.act(action)
    delete = next(action for action in world.plan().actions if isinstance(action, DeletePod))
    world.act(delete)  # and its successor is not there, or not seen yet
    assert world.holder(1).terminating
    world.control()
    assert world.status.faults[-1].rule == "lost-contact"


def test_wrong_alarm_ends_within_a_bounded_time_without_a_lease() -> None:
    world = World(make_job(3), nodes=3).started()
    node = cut(world, 1)
    assert lost_after(world, CUT_TIMEOUT_S)
    world.dead.discard(node)
    world.until("Running", EXCLUSION_S + 10, attempt=2)
    assert world.holder(1).spec.node_name == node


def test_a_node_that_is_accused_of_more_than_silence_is_not_used_at_once() -> None:
    world = World(make_job(3), nodes=3).started()
    node = cut(world, 1)
    assert lost_after(world, CUT_TIMEOUT_S)
    assert world.job is not None
    accused = replace(world.status.faults[-1], rule="rank-hardware")
    world.job = replace(world.job, status=replace(world.status, faults=(accused, world.status.faults[-1])))
    world.dead.discard(node)
    world.leases[node] = world.now + 1
    for _ in range(20):
        world.control()
        world.step()
    assert world.status.phase == "Restarting"


@pytest.mark.parametrize("fault", ["rank killed", "node lost"])
def test_a_restart_is_two_writes_with_the_times_of_all_stages(fault: str) -> None:
    world = World(make_job(3), nodes=4).started()
    written = len(world.actions(WriteStatus))
    if fault == "rank killed":
        world.exit_rank(1, 137, signal=9)
    else:
        world.kill_node(world.holder(1).spec.node_name)
    world.until("Running", attempt=2)
    assert [write.reason for write in world.actions(WriteStatus)[written:]] == ["Restarting", "Running"]
    timeline = world.status.faults[-1].timeline
    assert timeline is not None
    assert timeline.detected is not None
    assert timeline.stopped is not None
    assert timeline.placed is not None
    assert timeline.running is not None
    if fault == "rank killed":  # nothing was to be placed
        assert timeline.detected == timeline.placed < timeline.stopped <= timeline.running
    else:  # the healthy had stopped while the new pod had still to start
        assert timeline.detected < timeline.stopped < timeline.running
        assert timeline.detected < timeline.placed < timeline.running
