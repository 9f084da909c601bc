"""Pods of DaemonSets on nodes without kubelets: a program in this process plays each pod, with the pod's own token."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiohttp

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

STRATEGIC = "application/strategic-merge-patch+json"


class PodSession(NamedTuple):
    """What the program of a pod has: a session with its token, the API server's URL and its node."""

    http: aiohttp.ClientSession
    server: str
    node: str


Program = Callable[[PodSession], Awaitable[None]]


async def lists_all_pods(session: PodSession, every_s: float = 1.0) -> None:
    """The telemetry service of 11 December 2024: each node asks for everything again and again."""
    while True:
        async with session.http.get(f"{session.server}/api/v1/pods") as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        await asyncio.sleep(every_s)


async def watches_own_pods(session: PodSession) -> None:
    """A harmless agent: one watch that selects the pods of its own node, from any version."""
    query = {"watch": "1", "fieldSelector": f"spec.nodeName={session.node}", "resourceVersion": "0"}
    async with session.http.get(f"{session.server}/api/v1/pods", params=query) as answer:
        assert answer.status == 200, await answer.text()
        async for _ in answer.content.iter_any():
            pass


async def add_ready_nodes(client: Client, count: int) -> None:
    """Create nodes that take pods, as if kubelets had registered them."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    for number in range(count):
        name = f"node-{number}"
        await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, kind=Node)
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [condition]}
        await client.patch(Node, name, {"status": status}, subresource="status", content_type=STRATEGIC)


def daemonset(name: str, image: str, namespace: str = "monitoring") -> dict[str, Any]:
    """A DaemonSet whose program is chosen by `image`."""
    labels = {"app": name}
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "10m"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": name, "containers": [container]},
            },
        },
    }


class DaemonPods:
    """Plays the kubelets of all nodes: starts and ends the programs of pods that are bound."""

    def __init__(self, client: Client, config: ClusterConfig, programs: Mapping[str, Program]) -> None:
        self._client = client
        self._config = config
        self._programs = programs
        self._running: dict[str, asyncio.Task[None]] = {}
        self.started: list[str] = []
        """Names of pods, in the order in which they started."""

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[DaemonPods]:
        """Play while the block runs. Fails if the program of a pod failed."""
        watching = asyncio.create_task(self._follow())
        try:
            yield self
            for task in [watching, *self._running.values()]:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            tasks = [watching, *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        async for event in self._client.watch(Pod, resource_version="0", timeout_s=600):
            pod = event.object
            if event.type not in ("ADDED", "MODIFIED"):
                continue
            if pod.terminating:
                await self._end(pod)
            elif pod.spec.node_name and pod.uid not in self._running:
                await self._start(pod)

    async def _start(self, pod: Pod) -> None:
        image = pod.spec.containers[0].image
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"phase": "Running", "startTime": now, "conditions": [{"type": "Ready", "status": "True"}]}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                Pod, pod.name, {"status": status}, namespace=pod.namespace, subresource="status", content_type=STRATEGIC
            )
            bound = BoundObjectReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid)
            request = TokenRequest(spec=TokenRequestSpec(expiration_seconds=3600, bound_object_ref=bound))
            account = pod.spec.service_account_name
            token = (await self._client.create_token(account, request, namespace=pod.namespace)).status.token
            self._running[pod.uid] = asyncio.create_task(self._run(self._programs[image], token, pod))
            self.started.append(pod.name)

    async def _run(self, program: Program, token: str, pod: Pod) -> None:
        authority = ssl.create_default_context(cadata=self._config.ca_data.decode())
        connector = aiohttp.TCPConnector(ssl=authority)
        headers = {"Authorization": f"Bearer {token}", "User-Agent": f"{pod.spec.containers[0].image}/1.0"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            await program(PodSession(session, self._config.server, pod.spec.node_name))

    async def _end(self, pod: Pod) -> None:
        task = self._running.get(pod.uid)
        if task is not None:
            task.cancel()
        with contextlib.suppress(ApiError):
            await self._client.delete(Pod, pod.name, namespace=pod.namespace, grace_s=0)
