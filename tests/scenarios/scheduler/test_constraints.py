"""Rules about other pods, volumes that are made for a node, and room for DaemonSets, on API servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.kube.errors import ApiError
from muster.kube.objects.core import Namespace
from muster.kube.objects.storage import PersistentVolumeClaim
from muster.scheduler.actions.volume_provisioning import SELECTED_NODE
from tests.scenarios.scheduler.conftest import GPU, POOL, Cluster
from tests.support.waiting import until

RACK = "example.com/rack"


def near(key: str, gang: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"muster.dev/gang": gang}}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def racks(cluster: Cluster, *sizes: int) -> dict[str, str]:
    """Node -> rack."""
    found = {}
    for number, size in enumerate(sizes):
        for name in await cluster.add_nodes(size, labels={RACK: f"r{number}"}):
            found[name] = f"r{number}"
    return found


async def test_a_gang_that_belongs_together_is_bound_in_the_rack_that_fits_it(cluster: Cluster) -> None:
    rack_of = await racks(cluster, 1, 3, 2)
    cluster.schedule()
    await cluster.add_gang("train", 2, spec=near(RACK, "train"))
    await cluster.until_bound("train", 2)
    assert {rack_of[name] for name in (await cluster.bound("train")).values()} == {"r2"}
    spread = {
        "maxSkew": 1,
        "topologyKey": RACK,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"muster.dev/gang": "even"}},
    }
    await cluster.add_gang("even", 3, spec={"topologySpreadConstraints": [spread]})
    await asyncio.sleep(1)  # a full rack holds it up: nothing may come of it
    assert await cluster.bound("even") == {}
    await cluster.kill("train")
    await cluster.client.request("DELETE", f"/apis/muster.dev/v1alpha1/namespaces/{cluster.namespace}/placements/train")
    await cluster.until_bound("even", 3)
    assert len({rack_of[name] for name in (await cluster.bound("even")).values()}) == 3


async def test_a_namespace_selector_finds_pods_of_other_namespaces(cluster: Cluster) -> None:
    rack_of = await racks(cluster, 1, 1)
    first = next(iter(rack_of))
    cluster.schedule()
    await cluster.client.patch(Namespace, cluster.namespace, {"metadata": {"labels": {"team": cluster.namespace}}})
    there = cluster.pod("there", 0, 1, gpus=0, spec={"nodeName": first, "schedulerName": "default-scheduler"})
    await cluster.client.create(there)
    term = {
        "topologyKey": RACK,
        "labelSelector": {"matchLabels": {"muster.dev/gang": "there"}},
        "namespaceSelector": {"matchLabels": {"team": cluster.namespace}},
    }
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    await cluster.add_gang("away", 1, gpus=1, spec={"affinity": rules})
    await cluster.until_bound("away", 1)
    assert first not in (await cluster.bound("away")).values()


class Disks:
    """A storage class of one test's own whose provisioner is the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"disks-{cluster.namespace}"

    async def make_class(self, rack: str) -> None:
        storage_class = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": self.name},
            "provisioner": "example.com/disks",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": RACK, "values": [rack]}]}],
        }
        await self.cluster.client.create(storage_class)

    async def claim(self, name: str) -> None:
        spec = {
            "storageClassName": self.name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        meta = {"name": name, "namespace": self.cluster.namespace}
        await self.cluster.client.create(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        )

    async def selected(self, claim: str) -> str:
        found = await self.cluster.client.get(PersistentVolumeClaim, claim, self.cluster.namespace)
        return found.metadata.annotations.get(SELECTED_NODE, "")

    async def make_volume(self, claim: str) -> None:
        """As a provisioner does: a volume for that claim, where its pod will be."""
        node = await self.selected(claim)
        rules = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.cluster.namespace}-{claim}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.name,
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": self.cluster.namespace,
                    "name": claim,
                },
                "hostPath": {"path": "/nowhere"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": rules}]}},
            },
        }
        await self.cluster.client.create(volume)

    def volume(self, claim: str) -> dict[str, Any]:
        return {"name": claim, "persistentVolumeClaim": {"claimName": claim}}


@pytest.fixture
async def disks(cluster: Cluster) -> Disks:
    try:
        await cluster.client.request("GET", "/apis/storage.k8s.io/v1/storageclasses")
    except ApiError:
        pytest.skip("the embedded API server serves no StorageClasses")
    return Disks(cluster)


async def test_volumes_are_made_for_the_chosen_nodes_before_any_pod_is_bound(cluster: Cluster, disks: Disks) -> None:
    rack_of = await racks(cluster, 2, 2)
    await disks.make_class("r1")
    cluster.schedule(volume_deadline_s=60.0)
    for slot in range(2):
        await disks.claim(f"data-{slot}")
        await cluster.client.create(cluster.pod("train", slot, 2, spec={"volumes": [disks.volume(f"data-{slot}")]}))
    nodes = [await until("a node is selected", lambda slot=slot: disks.selected(f"data-{slot}")) for slot in range(2)]
    assert {rack_of[name] for name in nodes} == {"r1"}
    await disks.make_volume("data-0")
    await asyncio.sleep(2)  # one volume is still missing: nothing may come of it
    assert await cluster.bound("train") == {}
    await disks.make_volume("data-1")
    await cluster.until_bound("train", 2)
    assert await cluster.bound("train") == {f"train-{slot}-0": name for slot, name in enumerate(nodes)}


async def test_volumes_that_do_not_come_leave_nothing_bound_and_nothing_selected(
    cluster: Cluster, disks: Disks
) -> None:
    await racks(cluster, 2)
    await disks.make_class("r0")
    await disks.claim("data")
    cluster.schedule(volume_deadline_s=2.0, bind_deadline_s=3.0)
    await cluster.client.create(cluster.pod("train", 0, 2, spec={"volumes": [disks.volume("data")]}))
    await cluster.client.create(cluster.pod("train", 1, 2))
    await until("a node is selected", lambda: disks.selected("data"))

    async def withdrawn() -> bool:
        return not await disks.selected("data")

    await until("it is given up", withdrawn)
    assert await cluster.bound("train") == {}


async def test_room_is_kept_for_a_daemonset_whose_pods_have_yet_to_come(cluster: Cluster) -> None:
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {
            "nodeSelector": {POOL: cluster.namespace},
            "schedulerName": "missing",
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "2"}}}],
        },
    }
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": cluster.namespace},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
    }
    try:
        await cluster.client.create(daemons)
    except ApiError:
        pytest.skip("the embedded API server serves no DaemonSets")
    await cluster.add_nodes(1)
    cluster.schedule()

    def asking(cpu: int) -> dict[str, Any]:
        resources = {"limits": {GPU: "1", "cpu": str(cpu)}}
        return {"containers": [{"name": "worker", "image": "none", "resources": resources}]}

    await cluster.add_gang("large", 1, spec=asking(95))
    await cluster.add_gang("fits", 1, spec=asking(94))
    await cluster.until_bound("fits", 1)
    assert await cluster.bound("large") == {}
