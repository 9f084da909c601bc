"""StatefulSets as gangs, and the size that pods say of their gang."""

from __future__ import annotations

import pytest

from muster.scheduler.plan import Refuse
from tests.unit.scheduler.foreign import Foreign


def test_a_stateful_set_that_makes_its_pods_one_by_one_is_placed_as_they_come() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("statefulset", "web", {"replicas": 2, "podManagementPolicy": "OrderedReady"})
    world.set_pod_of("web", 0)
    world.run()
    assert world.ran_on().keys() == {"web-0"}
    world.set_pod_of("web", 1)
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a", 1: "b"}


def test_a_stateful_set_grows_and_shrinks_with_its_replicas() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    parallel = {"podManagementPolicy": "Parallel"}
    world.set_object("statefulset", "web", {"replicas": 2, **parallel})
    for index in range(2):
        world.set_pod_of("web", index)
    world.run()
    world.set_object("statefulset", "web", {"replicas": 3, **parallel})
    world.set_pod_of("web", 2)
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a", 1: "b", 2: "c"}
    world.set_object("statefulset", "web", {"replicas": 1, **parallel})
    for index in (1, 2):
        world.remove_pod(f"web-{index}")
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a"}
    world.add_gang("next", 2)
    world.run()
    assert len(world.nodes_of("next")) == 2


def test_a_size_on_the_pods_goes_before_what_the_object_says() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("statefulset", "web", {"replicas": 3, "podManagementPolicy": "Parallel"})
    for index in range(2):
        world.set_pod_of("web", index, annotations={"muster.dev/gang-size": "2"})
    world.run()
    assert world.ran_on().keys() == {"web-0", "web-1"}


@pytest.mark.parametrize("size", ["none", "0", "3"])
def test_a_size_that_is_wrong_is_refused_by_name(size: str) -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("statefulset", "web", {"replicas": 2, "podManagementPolicy": "Parallel"})
    world.set_pod_of("web", 0, annotations={"muster.dev/gang-size": "2"})
    world.set_pod_of("web", 1, annotations={"muster.dev/gang-size": size})
    (refusal,) = [action for action in world.decide().actions if isinstance(action, Refuse)]
    assert refusal.pod == "web-1"
    assert size in refusal.reason.text()
    assert world.ran_on() == {}
