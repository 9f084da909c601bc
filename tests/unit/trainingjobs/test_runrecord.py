"""Issue 11.1: what an attempt depends on is fixed when it begins, and recorded where a new leader finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.api.run_record import RANK_RANGES_MAX, RunRecord, SlotRange
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.objects.struct import encode
from muster.trainingjobs.attempts.run_record import in_rank_order, ranges, rank_order
from muster.trainingjobs.plan import Directive
from muster.trainingjobs.pods.slots import Slot
from tests.unit.trainingjobs.world import World, make_job, make_node


def relabel(world: World, node: str, zone: str) -> None:
    known = world.nodes[node]
    world.nodes[node] = replace(known, metadata=replace(known.metadata, labels={LABEL_ZONE: zone}))


def directed(world: World) -> Directive:
    assert world.directive is not None
    return world.directive


def test_the_others_are_done_before_rank_zero_while_their_node_objects_go() -> None:
    world = World(make_job(3))
    for name in world.nodes:
        relabel(world, name, "a")
    world.started()
    world.exit_rank(1, 0)
    world.exit_rank(2, 0)
    world.control()
    assert world.status.phase == "Running"
    del world.nodes["n2"]  # a missing node used to sort first, and so became the launcher's
    world.control()
    assert world.status.phase == "Running"
    world.exit_rank(0, 0)
    world.control()
    assert world.status.phase == "Succeeded"


def delete_pod(world: World, slot: int) -> None:
    """It is gone before the controller looks again."""
    world.gone(world.holder(slot).name)


def test_a_launcher_that_reported_its_good_end_counts_although_its_pod_is_gone() -> None:
    world = World(make_job(3)).started()
    world.exit_rank(0, 0)
    delete_pod(world, 0)
    world.control()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Succeeded", 1, None)


def test_a_new_controller_first_hears_the_supervisor_of_a_pod_that_is_being_deleted() -> None:
    world = World(make_job(2)).started()
    world.exit_rank(0, 0)
    world.delete(world.holder(0).name, world.holder(0).uid)
    world.restart_controller()
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Running", 1)
    world.supervise(world.holder(0))
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)


def test_a_new_controller_waits_no_longer_than_the_grace_for_that_word() -> None:
    world = World(make_job(2)).started()
    world.delete(world.holder(0).name, world.holder(0).uid)
    world.dead.add(world.holder(0).spec.node_name)
    world.restart_controller()
    world.control()
    assert world.status.phase == "Running"
    for _ in range(31):
        world.step()
        world.control()
    assert (world.status.phase, world.status.attempt) == ("Restarting", 2)


def test_without_a_launcher_every_node_must_have_reported_a_good_end() -> None:
    world = World(make_job(2, launcher="none")).started()
    world.exit_rank(0, 0)
    delete_pod(world, 0)
    world.control()
    assert (world.status.phase, world.status.faults[-1].rule) == ("Restarting", "pod-deleted")
    world.until("Running", attempt=2)
    world.exit_rank(1, 0)
    world.control()
    assert world.status.phase == "Running", "slot 0 ended in attempt 1 only"
    world.exit_rank(0, 0)
    delete_pod(world, 0)
    world.control()
    assert world.status.phase == "Succeeded"


@pytest.mark.parametrize("case", ["it failed", "it ran", "another slot"])
def test_other_last_words_of_a_deleted_pod_are_not_a_good_end(case: str) -> None:
    world = World(make_job(2)).started()
    slot = 1 if case == "another slot" else 0
    if case != "it ran":
        world.exit_rank(slot, 1 if case == "it failed" else 0)
    delete_pod(world, slot)
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Restarting", 2)


def test_a_wiped_status_does_not_make_a_good_end_of_an_earlier_attempt_count_again() -> None:
    world = World(make_job(1)).started()
    world.exit_rank(0, 0)
    delete_pod(world, 0)
    assert world.job is not None
    world.job = replace(world.job, status=TrainingJobStatus())
    world.until("Running", attempt=1)
    world.control()
    assert world.status.phase == "Running"


def test_a_relabelled_zone_does_not_move_the_launcher() -> None:
    world = World(make_job(3))
    for name in world.nodes:
        relabel(world, name, "b")
    world.started()
    relabel(world, world.holder(2).spec.node_name, "a")
    world.exit_rank(2, 0)
    world.exit_rank(1, 0)
    world.control()
    assert world.status.phase == "Running"
    world.exit_rank(0, 0)
    world.control()
    assert world.status.phase == "Succeeded"


def test_a_new_leader_builds_the_same_directive_whatever_has_changed_since() -> None:
    world = World(make_job(3))
    for index, name in enumerate(world.nodes):
        relabel(world, name, "ba"[index % 2])
    world.started()
    world.checkpoint(40)
    before = directed(world)
    for name in world.nodes:
        relabel(world, name, name)
    world.restart_controller()
    world.step()
    world.control()
    assert directed(world) == before


def test_a_leader_that_ends_between_the_write_and_the_directive_leaves_one_plan() -> None:
    world = World(make_job(3))
    while world.status.phase != "Running":
        world.control(rounds=20)
        world.step(0.5)
    before = directed(world)
    assert before.run is not None
    world.restart_controller()
    for name in world.nodes:
        relabel(world, name, f"z{9 - int(name[1:])}")
    world.checkpoint(40)
    world.control()
    world.step()
    world.control()
    assert directed(world).run == before.run


def test_without_a_record_and_without_word_of_ranks_every_node_must_have_finished() -> None:
    """A job that began under an earlier version, whose supervisors do not report node ranks."""
    world = World(make_job(2)).started()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, run=None))
    for uid, member in world.members.items():
        world.members[uid] = world.remembered[uid] = replace(member, node_rank=-1)
    world.exit_rank(0, 0)
    world.control()
    assert (world.status.phase, world.status.run) == ("Running", None)
    world.exit_rank(1, 0)
    world.control()
    assert world.status.phase == "Succeeded"


def test_a_record_that_was_deleted_is_restored_from_what_supervisors_report() -> None:
    world = World(make_job(3))
    for index, name in enumerate(world.nodes):
        relabel(world, name, "ba"[index % 2])
    world.started()
    record = world.status.run
    assert record is not None
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, run=None))
    for name in world.nodes:
        relabel(world, name, name)
    world.control()
    assert world.status.run == record


def test_another_pod_in_a_slot_of_a_running_attempt_ends_it() -> None:
    """Recreated by hand under the same name, it never ran: the others would wait for it for ever."""
    world = World(make_job(2)).started()
    pod = world.holder(1)
    world.gone(pod.name)
    world.pods[pod.name] = replace(pod, metadata=replace(pod.metadata, uid="by-hand"))
    world.until("Running", attempt=2)
    assert world.status.restarts is not None
    assert (world.status.restarts.user, world.status.restarts.total) == (0, 1)


@given(st.permutations(range(12)))
def test_an_order_is_read_back_from_its_ranges(order: list[int]) -> None:
    record = RunRecord(attempt=1, nodes=12, rank_order=ranges(order))
    slots = [Slot(number) for number in range(12)]
    found = in_rank_order(TrainingJobStatus(attempt=1, run=record), slots)
    assert found is not None
    assert [slot.number for slot in found] == order


@pytest.mark.parametrize(
    "bad",
    [
        RunRecord(attempt=1, nodes=3),
        RunRecord(attempt=2, nodes=4),
        RunRecord(attempt=1, nodes=4, rank_order=(SlotRange(first=0, count=3),)),
        RunRecord(attempt=1, nodes=4, rank_order=(SlotRange(first=0, count=10**12),)),
        RunRecord(attempt=1, nodes=4, rank_order=(SlotRange(first=1, count=4),)),
        RunRecord(attempt=1, nodes=4, rank_order=(SlotRange(first=0, count=4), SlotRange(first=0))),
    ],
)
def test_a_record_that_does_not_describe_the_attempt_is_not_used(bad: RunRecord) -> None:
    assert in_rank_order(TrainingJobStatus(attempt=1, run=bad), [Slot(number) for number in range(4)]) is None


def test_an_order_that_does_not_fit_is_kept_by_zone_and_else_by_slot() -> None:
    pod = World(make_job(1))
    pod.control()
    holder = pod.holder(0)
    slots = [Slot(slot, replace(holder, spec=replace(holder.spec, node_name=f"n{slot}"))) for slot in range(1000)]

    def order(zones: Callable[[int], int], racks: int) -> list[int]:
        nodes = {}
        for slot in slots:
            labels = {LABEL_ZONE: f"{zones(slot.number):03}", LABEL_RACK: f"{slot.number % racks:03}"}
            node = make_node(slot.node)
            nodes[slot.node] = replace(node, metadata=replace(node.metadata, labels=labels))
        return [slot.number for slot in rank_order(slots, nodes)]

    assert order(lambda number: 0, 1) == list(range(1000))
    assert order(lambda number: 0, 7)[:2] == list(range(1000))[:2], "a thousand ranges do not fit"
    assert order(lambda number: 1 - number // 500, 500)[:2] == [500, 501]
    assert order(lambda number: 1 - number // 500, 7) == [*range(500, 1000), *range(500)]
    assert order(lambda number: number % 500, 1) == list(range(1000))
    longest = (SlotRange(first=4999, count=4999),) * RANK_RANGES_MAX
    assert len(encode(RunRecord(attempt=1, rank_order=longest))) < 5000
