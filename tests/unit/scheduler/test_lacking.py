"""What gangs lack: in the order of the queue, each with what those before it leave."""

from __future__ import annotations

import pytest

from muster.api.names import LABEL_BALLOON
from muster.manager.lacks import demand_of
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.pods.resources import WHOLE
from muster.scheduler.queue.unmet_demand import Lack, lacking
from tests.unit.scheduler.world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.add_nodes("a")
    return made


def lacks(world: World) -> list[Lack]:
    plan = world.run()
    return list(lacking(world.state.snapshot(), plan))


def counts(world: World) -> dict[str, int]:
    return {lack.name: sum(count for _, count in lack.classes) for lack in lacks(world)}


def test_no_demand_is_unmet_if_all_gangs_fit(world: World) -> None:
    world.add_gang("train", 1)
    assert counts(world) == {}


def test_a_gang_lacks_what_the_free_nodes_do_not_give(world: World) -> None:
    world.add_gang("train", 3)
    assert counts(world) == {"default/train": 2}
    world.add_nodes("b")
    assert counts(world) == {"default/train": 1}


def test_the_next_in_the_queue_lacks_all_that_the_first_leaves_nothing_of(world: World) -> None:
    world.add_gang("first", 3)
    world.add_gang("second", 2)
    assert list(counts(world).items()) == [("default/first", 2), ("default/second", 2)]


def test_nodes_that_balloons_are_on_are_not_lacking(world: World) -> None:
    world.add_nodes("b")
    world.add_pod("balloon", {"priority": -5}, labels={LABEL_BALLOON: "true"})
    world.run()
    assert world.find("balloon").spec.node_name
    world.add_gang("train", 3)
    assert counts(world) == {"default/train": 1}


def test_approval_is_the_jobs_word(world: World) -> None:
    world.add_gang("train", 3)
    assert [lack.approved for lack in lacks(world)] == [False]
    world.set_job("train", JobFacts(scale_up=True))
    assert [lack.approved for lack in lacks(world)] == [True]


def test_a_gang_that_is_not_whole_lacks_pods_and_not_nodes(world: World) -> None:
    world.add_gang("train", 3)
    world.remove_pod("train-2-0")
    assert counts(world) == {}


def test_scaling_learns_the_requests_of_each_pod(world: World) -> None:
    world.add_gang("train", 3)
    (lack,) = lacks(world)
    demand = demand_of(lack)
    (members,) = demand.members
    assert (demand.key, demand.name, members.count, members.alone) == (lack.gang, "default/train", 2, True)
    assert members.request["pods"] == 1
    assert members.request["nvidia.com/gpu"] == 8
    assert WHOLE not in members.request, "issue 11.5: a template of new nodes does not name it"
