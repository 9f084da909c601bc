"""Shadow mode on a real control plane: what it says, and that it writes nothing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.deploy.conftest import ACCOUNT, SYSTEM, Cluster, Jobs, until
from tests.scenarios.deploy.foreign import name_every_kind
from tests.scenarios.deploy.rights import granted, unused, used

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]

READS = ("get", "list", "watch")


class Shadowed:
    """A cluster with Muster in shadow mode, and where the audit log stood before it was installed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.since = cluster, cluster.audit.position()


@pytest.fixture
def shadowed(cluster: Cluster) -> Iterator[Shadowed]:
    cluster.namespace(SYSTEM)
    cluster.kubectl("delete", "lease", "muster-controller", f"--namespace={SYSTEM}", "--ignore-not-found")
    made = Shadowed(cluster)
    cluster.install("--set=shadow=true")
    yield made
    cluster.uninstall()


def explain(cluster: Cluster, namespace: str, job: str) -> str:
    command = [str(Path(sys.executable).with_name("muster")), "explain", job, f"--namespace={namespace}"]
    env = os.environ | {"KUBECONFIG": str(cluster.plane.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sample(metrics: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    total = 0.0
    for line in metrics.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


@pytest.mark.kubernetes_since("1.36")  # pods with schedulingGroup
async def test_shadow_plans_everything_and_writes_nothing(shadowed: Shadowed, jobs: Jobs) -> None:
    cluster = shadowed.cluster
    await jobs.nodes_ready(4)
    await jobs.train("fits", 2)
    await jobs.train("big", 9)
    await asyncio.to_thread(claims, cluster, jobs.namespace)
    for claim in ("bound", "unbound"):
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        template = {"spec": {"volumes": [volume]}}
        await jobs.submit(f"claims-{claim}", "", replicas=1, gpusPerNode=0, nodeSharing="Shared", template=template)

    expected = [
        f"shadow: {jobs.namespace}/fits: would CreatePod fits-0-1",
        f"shadow: {jobs.namespace}/fits: would CreatePod fits-1-1",
        f"shadow: {jobs.namespace}/fits: would WritePlacement fits: 0 -> ",
        f"shadow: {jobs.namespace}/big: would CreatePod big-8-1",
        f"shadow: {jobs.namespace}/big: would wait: ",
        f"shadow: {jobs.namespace}/claims-unbound: would CreatePod claims-unbound-0-1",
        f"shadow: {jobs.namespace}/claims-bound: would WritePlacement claims-bound: 0 -> ",
    ]

    async def said() -> str:
        logs = await jobs.controller_logs()
        return logs if all(line in logs for line in expected) else ""

    logs = await until(f"the log holds {expected}", said)
    placed = re.search(r"would WritePlacement fits: 0 -> ([\w-]+), 1 -> ([\w-]+)", logs)
    assert placed is not None
    assert len(set(placed.groups())) == 2

    leader = await jobs.client.get(Pod, await jobs.leader(), SYSTEM)
    metrics = await asyncio.to_thread(scrape, leader.status.pod_ip)
    assert sample(metrics, "muster_trainingjob_actions_total", action="CreatePod") == 2 + 9 + 1 + 1
    assert sample(metrics, "muster_scheduler_shadow_actions_total", action="WritePlacement") >= 2

    fits, big = [await asyncio.to_thread(explain, cluster, jobs.namespace, name) for name in ("fits", "big")]
    assert "there is room for all of it" in fits
    workers = sum(node.ready for node in (await jobs.client.list(Node, label_selector="role=worker")).items)
    assert f"Add {9 - workers}, or use" in big

    await name_every_kind(jobs, shadowed.since)
    for name in ("fits", "big", "claims-bound", "claims-unbound"):
        assert await jobs.pods(name) == {}
        assert (await jobs.status(name)).attempt == 0
    entries = used(cluster, ACCOUNT, shadowed.since)
    assert [entry for entry in entries if entry.forbidden] == []
    writes = {(entry.verb, entry.object_ref.what) for entry in entries if entry.verb not in READS}
    assert writes == {("create", "leases"), ("update", "leases")}
    rights = await asyncio.to_thread(granted, cluster)
    assert rights.keys() == {"muster-controller"}
    assert unused(rights["muster-controller"], entries) == []

    await asyncio.to_thread(cluster.upgrade, "--set=shadow=false")
    await jobs.phase("fits", "Running", 1)
    jobs.finish("fits")
    await jobs.phase("fits", "Succeeded", 1)


def claims(cluster: Cluster, namespace: str) -> None:
    """A claim with a volume, and one without a provisioner."""
    size = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/none"}
    cluster.plane.access.apply(
        {**storage, "metadata": {"name": "shadow-disks"}},
        {**storage, "metadata": {"name": "shadow-nothing"}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"disk-{namespace}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "shadow-disks",
                "hostPath": {"path": str(cluster.folder)},
            },
        },
        *(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"storageClassName": storage_class, **size},
            }
            for name, storage_class in (("bound", "shadow-disks"), ("unbound", "shadow-nothing"))
        ),
    )


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}:9443/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text
