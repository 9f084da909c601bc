"""Indexed Jobs as gangs: slots are indexes, what is done counts and leaves, later indexes follow."""

from __future__ import annotations

from muster.scheduler.plan import Bind, MarkBound, WritePlacement
from muster.scheduler.reasons import Reason, Why
from tests.unit.scheduler.foreign import Foreign


def test_an_indexed_job_is_placed_whole_slots_are_its_indexes_and_the_placement_is_its() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    job = world.set_object("job", "train", {"parallelism": 3, "completions": 3})
    for index in (2, 0):
        world.job_pod("train", index)
    assert world.waits("job.train") == Reason(Why.WAITING_FOR_PODS, 3, 2)
    world.job_pod("train", 1)
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    placement = write.placement
    assert (placement.name, placement.spec.gang, placement.spec.gang_uid) == ("job.train", "job.train", job.ref.uid)
    assert placement.spec.size == 3
    (owner,) = placement.metadata.owner_references
    assert (owner.kind, owner.api_version, owner.uid, owner.controller) == ("Job", "batch/v1", job.ref.uid, None)
    world.carry_out(write)
    binds = [action for action in world.decide().actions if isinstance(action, Bind)]
    assert [(bind.pod, bind.slot) for bind in binds] == [("train-0-a", 0), ("train-1-a", 1), ("train-2-a", 2)]
    for bind in binds:
        world.carry_out(bind)
    (mark,) = world.decide().actions
    assert isinstance(mark, MarkBound)


def test_an_index_that_is_done_is_not_waited_for_kubernetes_142330() -> None:
    """Native gang scheduling waits for minCount pods though an index has finished; what is done counts here."""
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("job", "train", {"parallelism": 3, "completions": 3})
    for index in range(3):
        world.job_pod("train", index)
    world.run()
    before = world.ran_on()
    world.finish("train-2-a")
    world.remove_pod("train-1-a")
    world.job_pod("train", 1, "b")
    world.run()
    assert world.ran_on("train-1-b") == {"train-1-b": before["train-1-a"]}
    world.forget_all()
    world.remove_pod("train-0-a")
    world.job_pod("train", 0, "b")
    world.run()
    assert world.ran_on("train-0-b") == {"train-0-b": before["train-0-a"]}


def test_the_node_of_an_index_that_is_done_is_free_for_others() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("job", "train", {"parallelism": 2, "completions": 2})
    for index in range(2):
        world.job_pod("train", index)
    world.run()
    world.finish("train-0-a")
    world.add_gang("next", 1)
    world.run()
    assert world.nodes_of("next") == {0: "a"}


def test_later_indexes_take_the_slots_of_earlier_ones() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("job", "sweep", {"parallelism": 2, "completions": 5})
    for index in range(2):
        world.job_pod("sweep", index)
    world.run()
    for index in range(3):
        node = world.ran_on(f"sweep-{index}-a")[f"sweep-{index}-a"]
        world.finish(f"sweep-{index}-a")
        world.job_pod("sweep", index + 2)
        world.run()
        assert world.ran_on(f"sweep-{index + 2}-a") == {f"sweep-{index + 2}-a": node}
    assert world.slots_of("job.sweep").keys() == {0, 1}


def test_an_index_that_is_tried_again_never_shares_a_slot_with_a_later_one() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("job", "sweep", {"parallelism": 2, "completions": 5})
    for index in range(2):
        world.job_pod("sweep", index)
    world.run()
    world.remove_pod("sweep-0-a")
    world.job_pod("sweep", 2)
    world.run()
    world.remove_pod("sweep-1-a")
    world.job_pod("sweep", 0, "b")
    world.run()
    assert world.ran_on().keys() == {"sweep-2-a", "sweep-0-b"}
    assert world.slots_of("job.sweep").keys() == {0, 1}


def test_a_finished_job_gives_its_nodes_back() -> None:
    world = Foreign()
    world.add_nodes("a")
    spec = {"parallelism": 1, "completions": 1}
    world.set_object("job", "train", spec)
    world.job_pod("train", 0)
    world.run()
    world.finish("train-0-a")
    world.set_object("job", "train", spec, conditions=[{"type": "Complete", "status": "True"}])
    world.run()
    assert world.placements == {}


def test_the_placement_of_an_object_that_is_gone_is_deleted_also_by_a_new_leader() -> None:
    world = Foreign()
    world.add_nodes("a")
    world.set_object("job", "train", {"parallelism": 1, "completions": 1})
    world.job_pod("train", 0)
    world.run()
    world.remove_pod("train-0-a")
    world.run()
    assert world.slots_of("job.train") == {0: "a"}, "its pod may be recreated"
    world.objects.clear()
    world.forget_all()
    world.run()
    assert world.placements == {}
