"""Deployments on the embedded API server, which has none: what their controllers would do, from outside."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from muster.kube.client import Client
from muster.kube.errors import ApiError, Conflict, NotFound
from muster.kube.objects.apps import Deployment
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import decode
from tests.support.workloads import install

COST = "controller.kubernetes.io/pod-deletion-cost"
_LOOK_S = 0.05


async def serve_deployments(client: Client, namespace: str) -> None:
    """Make and delete pods as the Deployments of the namespace say, until cancelled."""
    await install(client, Deployment.RESOURCE)
    while True:
        with contextlib.suppress(ApiError):
            body = await client.request("GET", Deployment.RESOURCE.path(namespace))
            pods = [pod for pod in (await client.list(Pod, namespace)).items if not pod.terminating]
            listed = decode(body, dict)["items"]
            for deployment in listed:
                await _once(client, namespace, deployment, pods)
            owners = {deployment["metadata"]["uid"] for deployment in listed}
            for pod in pods:
                if pod.metadata.owner_references and pod.metadata.owner_references[0].uid not in owners:
                    await _delete(client, pod)
        await asyncio.sleep(_LOOK_S)


async def _once(client: Client, namespace: str, deployment: dict[str, Any], pods: list[Pod]) -> None:
    meta, spec = deployment["metadata"], deployment["spec"]
    own = [pod for pod in pods if any(ref.uid == meta["uid"] for ref in pod.metadata.owner_references)]
    for _ in range(spec["replicas"] - len(own)):
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}
        template = spec["template"]
        name = f"{meta['name']}-{uuid.uuid4().hex[:6]}"
        pod_meta = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": [owner]}
        await client.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": template["spec"]}, kind=Pod
        )
    own.sort(key=lambda pod: (bool(pod.spec.node_name), int(pod.metadata.annotations.get(COST, 0))))
    for pod in own[: max(0, len(own) - spec["replicas"])]:
        await _delete(client, pod)


async def _delete(client: Client, pod: Pod) -> None:
    with contextlib.suppress(NotFound, Conflict):
        await client.delete(Pod, pod.name, namespace=pod.namespace, uid=pod.uid)
