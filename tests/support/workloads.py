"""Objects of others as their users and controllers make them: the least of their kinds, and labels of their pods."""

from __future__ import annotations

import contextlib
from typing import Any

from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.meta import Resource
from muster.kube.objects.workloads import CoschedulingPodGroup, JobSet, MPIJob, RayCluster
from tests.support.waiting import until

CUSTOM = (CoschedulingPodGroup.RESOURCE, JobSet.RESOURCE, MPIJob.RESOURCE, RayCluster.RESOURCE)
MPI = "training.kubeflow.org/"
JOBSET = "jobset.sigs.k8s.io/"
POD_GROUP = "scheduling.x-k8s.io/pod-group"
INDEX = "batch.kubernetes.io/job-completion-index"


def crd(resource: Resource) -> dict[str, Any]:
    """A kind that takes whatever it is given."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def install(client: Client, *resources: Resource) -> None:
    """Make the kinds and wait until they are served."""
    for resource in resources:
        with contextlib.suppress(AlreadyExists):
            await client.create(crd(resource))

    async def served() -> bool:
        with contextlib.suppress(ApiError):
            for resource in resources:
                await client.request("GET", resource.path())
            return True
        return False

    await until("the kinds are served", served)


async def uninstall(client: Client, *resources: Resource) -> None:
    """Delete the kinds with all their objects, and wait until they are gone."""
    paths = [
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.plural}.{resource.group}"
        for resource in resources
    ]
    for path in paths:
        with contextlib.suppress(NotFound):
            await client.request("DELETE", path)

    async def gone() -> bool:
        for path in paths:
            try:
                await client.request("GET", path)
            except NotFound:
                continue
            return False
        return True

    await until("the kinds are gone", gone)


def object_of(resource: Resource, name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def owner(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "name": name, "uid": uid, "controller": True, "blockOwnerDeletion": False}


def mpi_labels(job: str, role: str, index: int = 0) -> dict[str, str]:
    labels = {f"{MPI}operator-name": "mpi-operator", f"{MPI}job-name": job, f"{MPI}job-role": role}
    return labels if role == "launcher" else {**labels, f"{MPI}replica-index": str(index)}


def ray_labels(cluster: str, group: str = "") -> dict[str, str]:
    return {"ray.io/cluster": cluster, "ray.io/node-type": "worker" if group else "head", "ray.io/group": group}


def jobset_labels(name: str, part: str, job: int, index: int) -> dict[str, str]:
    return {
        f"{JOBSET}jobset-name": name,
        f"{JOBSET}replicatedjob-name": part,
        f"{JOBSET}job-index": str(job),
        f"{JOBSET}restart-attempt": "0",
        INDEX: str(index),
    }
