"""What nodes have left is what a scheduler counts that has just listed everything, with gangs and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.api.names import LABEL_POOL
from muster.kube.objects.struct import from_dict
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.daemons import DaemonSet
from muster.scheduler.nodes.node_class import BucketKey
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.world import World, node

NODES = ["n0", "n1", "n2"]
DAEMONS = ["logs", "metrics"]


def daemons(name: str, cpu: int) -> DaemonSet:
    container = {"name": "agent", "resources": {"requests": {"cpu": str(cpu)}}}
    template = {"spec": {"containers": [container]}}
    return from_dict({"metadata": {"name": name, "uid": name}, "spec": {"template": template}}, DaemonSet)


class Mixed(World):
    """Gangs of two, pods of other schedulers, DaemonSets, and nodes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.daemons: dict[str, DaemonSet] = {}
        self.count = 0
        for name in NODES:
            self.set_node(node(name))

    def step(self, what: str, name: str, number: int) -> None:
        self.now += 1.0
        match what:
            case "node":
                ready, labels = number % 2 == 0, {LABEL_POOL: "a"} if number > 2 else {}
                self.set_node(node(name, ready=ready, labels=labels, uid=f"{name}-{number // 2}"))
            case "no node" if name in self.nodes:
                self.remove_node(name)
            case "foreign pod":
                ports = [{"containerPort": 80, "hostPort": 80}] if number == 0 else []
                self.foreign(name, {"name": "x", "ports": ports})
            case "daemon pod":
                self.foreign(name, {"name": "x"}, kind="DaemonSet", owner=DAEMONS[number % 2])
            case "daemons":
                self.daemons[DAEMONS[number % 2]] = daemons(DAEMONS[number % 2], number + 1)
                self.state.set_daemons(self.daemons[DAEMONS[number % 2]])
            case "no daemons" if self.daemons.pop(DAEMONS[number % 2], None):
                self.state.remove_daemons(DAEMONS[number % 2])
            case "gang":
                self.count += 1
                self.add_gang(f"gang{self.count}", 2, gpus=8 if number % 2 else 4)
            case "act":
                for action in self.decide().actions[: number + 1]:
                    self.carry_out(action)
            case "pod goes" if self.pods:
                self.remove_pod(list(self.pods.values())[number % len(self.pods)].name)
            case "pod finishes" if self.pods:
                self.finish(list(self.pods.values())[number % len(self.pods)].name)

    def foreign(self, name: str, container: dict[str, Any], *, kind: str = "", owner: str = "") -> None:
        self.count += 1
        owners = [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": True}]
        resources = {"requests": {"cpu": "2"}}
        spec = {"schedulerName": "other", "nodeName": name, "containers": [{**container, "resources": resources}]}
        self.add_pod(f"foreign-{self.count}", spec, owners=owners if kind else [])

    def listed(self) -> ClusterState:
        state = super().listed()
        for each in self.daemons.values():
            state.set_daemons(each)
        return state


def seen(buckets: Mapping[BucketKey, Bucket]) -> dict[str, object]:
    return {
        name: (bucket.node_class.problem, bucket.node_class.pool, bucket.free, bucket.ports)
        for bucket in buckets.values()
        for name in bucket.names
    }


OTHERS = ["node", "no node", "foreign pod", "daemon pod", "daemons", "no daemons", "pod goes", "pod finishes"]
STEPS = st.tuples(st.sampled_from([*OTHERS, "gang", "act", "act", "act"]), st.sampled_from(NODES), st.integers(0, 3))


@given(st.lists(STEPS, max_size=25))
def test_room_is_never_another_than_a_new_leader_counts(steps: list[tuple[str, str, int]]) -> None:
    world = Mixed()
    for what, name, number in steps:
        world.step(what, name, number)
        now, fresh = world.state.snapshot(), world.listed().snapshot()
        if any(gang.unknown_holds for gang in fresh.gangs.values()):
            continue  # without any pod of a gang a new leader does not know what its slots take
        assert seen(now.buckets) == seen(fresh.buckets)
        assert seen(now.empty_buckets) == seen(fresh.empty_buckets)
        assert now.pools == fresh.pools
