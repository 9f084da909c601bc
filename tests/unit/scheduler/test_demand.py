"""Cluster autoscalers see the whole of an approved gang, or nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from muster.kube.objects.pod import PodCondition
from muster.scheduler.actions.gang_events import SHOWN_AT_ONCE, Reporter
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import Plan
from muster.scheduler.queue.demand import Demand
from tests.unit.scheduler.world import World

APPROVED = {"muster.dev/scale-up": "approved"}


def approve(world: World, name: str, annotations: dict[str, str]) -> None:
    """As `kubectl annotate pod` does."""
    pod = world.find(name)
    meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
    world._set_pod(msgspec.structs.replace(pod, metadata=meta))


def show(world: World, plan: Plan) -> None:
    """Write the conditions, as the reporter does."""
    for demand in plan.demands:
        condition = PodCondition(type="PodScheduled", status="False", reason=demand.reason, message=demand.message)
        for name, uid in demand.pods:
            pod = world.find(name)
            assert pod.uid == uid
            status = msgspec.structs.replace(pod.status, conditions=(condition,))
            world._set_pod(msgspec.structs.replace(pod, status=status))


def seen(world: World) -> set[str]:
    """The pods for which an autoscaler adds nodes: see its `PodScheduled` filter."""
    return {
        pod.name
        for pod in world.pods.values()
        for each in pod.status.conditions
        if not pod.spec.node_name
        and (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable")
    }


def uids(world: World, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, world.find(name).uid) for name in names)


@pytest.fixture
def world() -> World:
    made = World()
    made.add_nodes("a")
    made.add_gang("train", 3)
    return made


def test_without_approval_nothing_is_shown(world: World) -> None:
    assert world.run().demands == ()


def test_the_whole_gang_is_shown_at_once_when_its_job_is_approved(world: World) -> None:
    world.state.jobs.set("uid-train", JobFacts(scale_up=True))
    plan = world.run()
    key = world.gang("train").key
    message = "needs room for 3 pods; if all usable nodes were empty, they would have room for 1"
    pods = uids(world, "train-0-0", "train-1-0", "train-2-0")
    assert plan.demands == (Demand(key, "default", pods, "Unschedulable", message),)
    show(world, plan)
    assert world.run().demands == (), "said once"
    world.add_nodes("b", "c")
    world.run()
    assert len(world.nodes_of("train")) == 3
    assert seen(world) == set()
    assert world.run().demands == ()


def test_pods_approve_only_together(world: World) -> None:
    for slot in (0, 1):
        approve(world, f"train-{slot}-0", APPROVED)
        assert world.run().demands == ()
    approve(world, "train-2-0", APPROVED)
    show(world, world.run())
    assert seen(world) == {"train-0-0", "train-1-0", "train-2-0"}


def test_a_demand_is_taken_back_with_the_approval(world: World) -> None:
    world.state.jobs.set("uid-train", JobFacts(scale_up=True))
    show(world, world.run())
    world.state.jobs.set("uid-train", JobFacts())
    plan = world.run()
    assert [(demand.reason, len(demand.pods)) for demand in plan.demands] == [("ScaleUpNotApproved", 3)]
    show(world, plan)
    assert seen(world) == set()
    assert world.run().demands == ()


def test_never_part_of_a_gang_is_shown(world: World) -> None:
    world.state.jobs.set("uid-train", JobFacts(scale_up=True))
    show(world, world.run())
    world.remove_pod("train-1-0")
    plan = world.run()
    assert [(demand.reason, [name for name, _ in demand.pods]) for demand in plan.demands] == [
        ("WaitingForPods", ["train-0-0", "train-2-0"])
    ]
    show(world, plan)
    world.add_member("train", 1, 3, attempt=1)
    show(world, world.run())
    assert seen(world) == {"train-0-0", "train-1-1", "train-2-0"}


def test_gang_that_waits_behind_another_is_not_demand_yet(world: World) -> None:
    world.add_nodes("b", "c")
    world.add_gang("running", 1)
    world.add_nodes("d")
    world.run()  # train has three nodes, running one
    world.add_gang("head", 2)
    world.add_gang("next", 2)
    for name in ("head", "next"):
        world.state.jobs.set(f"uid-{name}", JobFacts(scale_up=True))
    show(world, world.run())
    assert seen(world) == {"head-0-0", "head-1-0"}
    world.add_nodes("e", "f")
    show(world, world.run())
    assert seen(world) == {"next-0-0", "next-1-0"}


def test_a_new_leader_says_nothing_twice(world: World) -> None:
    world.state.jobs.set("uid-train", JobFacts(scale_up=True))
    show(world, world.run())
    world.forget_all()
    world.state.jobs.set("uid-train", JobFacts(scale_up=True))
    assert world.run().demands == ()


async def test_conditions_are_written_a_few_at_a_time_and_none_twice_at_once() -> None:
    class Server:
        def __init__(self) -> None:
            self.now, self.most, self.patched = 0, 0, list[str]()

        async def patch(self, kind: type, name: str, patch: Any, **options: Any) -> None:
            assert patch["status"]["conditions"][0]["reason"] == "Unschedulable"
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            self.patched.append(name)

    server = Server()
    reporter = Reporter(server, None, None)  # type: ignore[arg-type]
    pods = tuple((f"train-{slot}", f"uid-{slot}") for slot in range(100))
    demand = Demand("default/train/uid", "default", pods, "Unschedulable", "lacks nodes")
    await asyncio.gather(reporter.show(demand, 0.0), reporter.show(demand, 0.0))
    assert sorted(server.patched) == sorted(name for name, _ in pods)
    assert server.most <= SHOWN_AT_ONCE
