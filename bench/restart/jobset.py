"""The peer: JobSet with its failure policy that recreates all pods.

The gang is one replicated Job of N indexed pods, the fewest possible objects. The API server learns of faults at once:
the pod is marked Failed, and a lost node is unreachable at once. On a real cluster a lost node is noticed only after 40
to 50 s; none of that is charged here. Webhooks are off; the fields that they would fill in are spelt out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.controller import served
from bench.restart.cluster import GPU, NAMESPACE, SPARES, Cluster, Fault, cluster
from bench.restart.outcome import RANKS_RUNNING, Outcome
from muster.controlplane.children import Child
from muster.controlplane.goprograms import find_built
from muster.kube.objects.pod import Pod

API_VERSION = "jobset.x-k8s.io/v1alpha2"
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
WAIT_S = 300.0


def manifest(name: str, ranks: int) -> dict[str, Any]:
    """A gang of whole-node pods that is restarted as one."""
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "worker", "image": "train", "resources": {"limits": {GPU: "8"}}}],
    }
    job = {
        "parallelism": ranks,
        "completions": ranks,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "failurePolicy": {"maxRestarts": 1000},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }


@asynccontextmanager
async def controller(where: Cluster) -> AsyncIterator[None]:
    """Run JobSet's controller under a service account of its own."""
    folder = find_built("jobset")
    manifests = folder / "manifests" / "jobset.x-k8s.io_jobsets.yaml"
    access = where.plane.access
    access.kubectl("create", "-f", str(manifests))
    await served(where.client, f"/apis/{API_VERSION}/jobsets")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    kubeconfig = access.service_account_kubeconfig("jobset-system", "jobset-controller", rules)
    child = Child(
        [folder / "jobset"], Path(where.directory) / "jobset.log", {**os.environ, "KUBECONFIG": str(kubeconfig)}
    )
    try:
        yield
        if child.exit_code is not None:
            raise RuntimeError(f"the JobSet controller ended:\n{child.log_tail()}")
    finally:
        child.stop()


async def measure(sizes: list[int], faults: tuple[Fault, ...], repetitions: int) -> AsyncIterator[Outcome]:
    """Every size, fault and repetition, on one control plane."""
    async with cluster("jobset", max(sizes) + SPARES, scheduler=True) as where, controller(where):
        for ranks in sizes:
            name = f"gang-{ranks}"
            await where.client.create(manifest(name, ranks))
            await _all_running(where, name, ranks, attempt=0)
            attempt = 0
            for _ in range(repetitions):
                for fault in faults:
                    attempt += 1
                    yield await _one(where, name, ranks, fault, attempt)
            path = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/jobsets/{name}"
            await where.client.request("DELETE", path, params={"propagationPolicy": "Background"})
            await where.nodes.until(lambda: not where.nodes.pods, "the last pod gone", timeout_s=WAIT_S)


async def _one(where: Cluster, name: str, ranks: int, fault: Fault, attempt: int) -> Outcome:
    await where.settled_writes(where.audit.position())  # nothing of the last restart is left
    victim = next(sim for sim in where.nodes.pods.values() if sim.phase == "running")
    node = victim.node.name
    began, since = asyncio.get_running_loop().time(), where.audit.position()
    if fault == "rank_killed":
        await where.nodes.end(victim.pod.uid, 137)
    else:
        pod = victim.pod
        where.nodes.lose(node)
        await where.nodes.report_unreachable(node)
        await where.nodes.report_ended(pod, code=255, disruption="DeletionByTaintManager")
    running = await _all_running(where, name, ranks, attempt) - began
    writes = await where.settled_writes(since)
    if fault == "node_lost":
        await where.nodes.recover(node)
    return Outcome("jobset", ranks, fault, {RANKS_RUNNING: running}, writes)


async def _all_running(where: Cluster, name: str, ranks: int, attempt: int) -> float:
    def wanted(pod: Pod) -> bool:
        labels = pod.metadata.labels
        return labels.get(NAME_LABEL) == name and labels.get(ATTEMPT_LABEL) == str(attempt)

    def all_there() -> bool:
        return len(where.pods_of(wanted, "running")) == ranks

    return await where.nodes.until(all_there, f"all {ranks} pods of {name} at attempt {attempt}", timeout_s=WAIT_S)
