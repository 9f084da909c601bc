"""The condition Admitted: why a job has no nodes, in the scheduler's typed reason, at no cost in writes."""

from __future__ import annotations

from msgspec.structs import replace

from muster.kube.objects.meta import Condition
from muster.trainingjobs.decide import decide
from muster.trainingjobs.plan import WriteStatus
from muster.trainingjobs.snapshot import Wait
from tests.unit.trainingjobs.world import World, make_job

SHORT = Wait("NotEnoughNodes", "needs 2 nodes, 1 is free")


def look(world: World, waits_for: Wait | None) -> list[WriteStatus]:
    """Carry out what is decided at a moment at which news may be written; returns what was."""
    snapshot = replace(world.snapshot(), waits_for=waits_for, progress_due=True)
    writes = [action for action in decide(snapshot, world.now).actions if isinstance(action, WriteStatus)]
    for write in writes:
        world.act(write)
    return writes


def admitted(world: World) -> Condition:
    return next(each for each in world.status.conditions if each.type == "Admitted")


def test_a_job_without_nodes_says_what_the_scheduler_says_once() -> None:
    world = World(make_job(replicas=2))
    world.control()
    assert len(look(world, SHORT)) == 1
    assert world.status.message == "waiting for 2 of 2 nodes: needs 2 nodes, 1 is free [NotEnoughNodes]"
    condition = admitted(world)
    assert (condition.status, condition.reason, condition.message) == ("False", SHORT.reason, SHORT.message)
    assert look(world, SHORT) == []
    behind = Wait("BehindInQueue", "waiting behind ns/other")
    assert len(look(world, behind)) == 1
    assert admitted(world).reason == behind.reason
    assert admitted(world).last_transition_time == condition.last_transition_time, "it is as false as it was"


def test_a_new_leader_never_unsays_what_the_scheduler_has_yet_to_say_again() -> None:
    world = World(make_job(replicas=2))
    world.control()
    look(world, SHORT)
    world.restart_controller()
    assert look(world, None) == []
    assert look(world, SHORT) == []
    (write,) = look(world, Wait())
    assert write.status.message == "waiting for 2 of 2 nodes"


def test_new_leader_keeps_the_schedulers_reason_whatever_the_message_says() -> None:
    world = World(make_job(replicas=2))
    world.control()
    look(world, SHORT)
    world.job = replace(world.job, status=replace(world.status, message="some words"))
    world.restart_controller()
    look(world, None)
    assert admitted(world).reason == SHORT.reason


def test_the_condition_costs_no_write_of_its_own() -> None:
    world = World(make_job(replicas=2))
    world.until("Running")
    condition = admitted(world)
    assert (condition.status, condition.reason) == ("True", "NodesAssigned")
    assert len(world.history) == 3, "its attempt has a number, its pods are bound, it runs"


def test_refusal_of_pods_is_cleared_once_they_exist() -> None:
    world = World(make_job(replicas=2, gpusPerNode=0), nodes=0)
    world.quota = 1
    for _ in range(4):
        world.control()
        world.step()
    assert admitted(world).reason == "PodsRefused"
    world.quota = None
    world.now += 120.0
    world.control()
    look(world, None)
    assert (admitted(world).status, admitted(world).reason) == ("False", "PodsCreated")


def test_a_job_without_nodes_is_never_admitted() -> None:
    world = World(make_job(replicas=2)).started()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.until("Suspended")
    assert (admitted(world).status, admitted(world).reason) == ("False", "Suspended")
