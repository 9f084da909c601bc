"""A cluster of modelled nodes: Node objects that say they are ready, and pods without kubelets."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.placement import Placement
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.core import Event
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.controller import SchedulerController
from muster.scheduler.plan import Settings
from tests.support.apiserver import ApiServer
from tests.support.hearing import HearingClient
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import until

POOL = "muster.dev/test-pool"
_HEARTBEAT_S = 5.0
GPU = "nvidia.com/gpu"


class Cluster:
    """A namespace and nodes of one test's own; pods reach those nodes only."""

    def __init__(self, client: Client, kubeconfig: Path, hearing: HearingClient | None = None) -> None:
        self.client = client
        self.kubeconfig = kubeconfig
        self._own = hearing or client
        """The client of schedulers without one of their own."""
        self.hearing = hearing
        """That of the scheduler that was started last."""
        self.namespace = f"t{uuid.uuid4().hex[:10]}"
        self.nodes: list[str] = []
        self._runs: dict[asyncio.Task[None], asyncio.Event] = {}
        self._ready: dict[str, tuple[bool, int]] = {}
        self._reporting = asyncio.Lock()
        self._heart: asyncio.Task[None] | None = None

    def connect(self, **options: Any) -> Client:
        return Client(load_config(str(self.kubeconfig)), **options)

    async def start(self) -> None:
        await install_kinds(self.client)
        await make_namespace(self.client, self.namespace)

    async def add_nodes(self, count: int, *, gpus: int = 8, labels: dict[str, str] | None = None) -> list[str]:
        names = [f"{self.namespace}-n{len(self.nodes) + index}" for index in range(count)]
        for name in names:
            await self.client.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {POOL: self.namespace, **(labels or {})}},
                }
            )
            await self.set_ready(name, True, gpus=gpus)
        self.nodes += names
        await until("the node lifecycle controller lets pods on them", lambda: self._untainted(names))
        return names

    async def _untainted(self, names: list[str]) -> bool:
        nodes = (await self.client.list(Node, label_selector=f"{POOL}={self.namespace}")).items
        return {node.name for node in nodes if not node.spec.taints} >= set(names)

    async def set_ready(self, name: str, ready: bool, *, gpus: int = 8) -> None:
        self._ready[name] = ready, gpus
        await self._report(name)
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        """As kubelets do: where the node lifecycle controller missed a report or heard none for 40 s, a taint stays."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            for name in list(self._ready):
                with contextlib.suppress(ApiError):  # as of a node that is gone; of the others, the next beat comes
                    await self._report(name)

    async def _report(self, name: str) -> None:
        async with self._reporting:  # else what a node said before may arrive after what it says now
            if name in self._ready:
                await self._write(name, *self._ready[name])

    async def _write(self, name: str, ready: bool, gpus: int) -> None:
        room = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(gpus)}
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "Test",
            "message": "",
            "lastHeartbeatTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self.client.patch(
            Node,
            name,
            {"status": {"capacity": room, "allocatable": room, "conditions": [condition]}},
            subresource="status",
        )

    async def remove_node(self, name: str) -> None:
        self._ready.pop(name, None)
        await self.client.delete(Node, name)
        self.nodes.remove(name)

    def pod(
        self, gang: str, slot: int, size: int, *, attempt: int = 0, gpus: int = 8, spec: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{gang}-{slot}-{attempt}",
                "namespace": self.namespace,
                "labels": {"muster.dev/gang": gang, "muster.dev/slot": str(slot)},
                "annotations": {
                    "muster.dev/gang-size": str(size),
                    "muster.dev/gang-uid": f"uid-of-{gang}",
                    "muster.dev/attempt": str(attempt),
                },
            },
            "spec": {
                "schedulerName": "muster",
                "nodeSelector": {POOL: self.namespace},
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "worker", "image": "none", "resources": {"limits": {GPU: str(gpus), "cpu": "1"}}}
                ],
                **(spec or {}),
            },
        }

    async def add_gang(self, gang: str, size: int, **options: Any) -> None:
        for slot in range(size):
            await self.client.create(self.pod(gang, slot, size, **options))

    async def pods(self, gang: str = "") -> list[Pod]:
        selector = f"muster.dev/gang={gang}" if gang else ""
        return (await self.client.list(Pod, self.namespace, label_selector=selector)).items

    async def bound(self, gang: str) -> dict[str, str]:
        return {pod.name: pod.spec.node_name for pod in await self.pods(gang) if pod.spec.node_name}

    async def placement(self, gang: str) -> Placement | None:
        try:
            return await self.client.get(Placement, gang, self.namespace)
        except NotFound:
            return None

    async def is_bound(self, gang: str, size: int) -> bool:
        placement = await self.placement(gang)
        return len(await self.bound(gang)) == size and placement is not None and placement.status.phase == "Bound"

    async def until_bound(self, gang: str, size: int, what: str = "bound") -> None:
        """Wait for it; where it never is, show why not."""
        try:
            await until(what, lambda: self.is_bound(gang, size))
        except AssertionError as error:
            nodes = [node for node in (await self.client.list(Node)).items if node.name in self.nodes]
            seen = [str(await self.placement(gang)), *map(str, await self.pods()), *map(str, nodes)]
            raise AssertionError("\n".join([str(error), *seen])) from None

    async def kill(self, gang: str) -> None:
        for pod in await self.pods(gang):
            with contextlib.suppress(NotFound):  # its owner is gone, and the garbage collector was here first
                await self.client.delete(Pod, pod.name, namespace=self.namespace, grace_s=0)

    async def events(self) -> list[Event]:
        return (await self.client.list(Event, self.namespace)).items

    def schedule(self, client: Client | None = None, **options: Any) -> tuple[SchedulerController, asyncio.Task[None]]:
        settings = options.pop("settings", Settings())
        used = client or self._own
        self.hearing = used if isinstance(used, HearingClient) else None
        controller = SchedulerController(
            used, "muster-system", "test", settings=settings, registry=CollectorRegistry(), **options
        )
        stop = asyncio.Event()
        task = asyncio.create_task(controller.run(stop))
        self._runs[task] = stop
        return controller, task

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
        for task, stop in self._runs.items():
            stop.set()
            task.cancel()
        results = await asyncio.gather(*self._runs, return_exceptions=True)
        # A node that stays would get pods of the next tests on this server.
        with contextlib.suppress(ApiError):
            await self.kill("")
        for name in list(self.nodes):
            with contextlib.suppress(ApiError):
                await self.remove_node(name)
        with contextlib.suppress(ApiError):
            await self.client.request("DELETE", f"/api/v1/namespaces/{self.namespace}")
        for result in results:
            if isinstance(result, Exception):
                raise result


@pytest.fixture
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    config = load_config(api_server.kubeconfig)
    async with Client(config) as client, HearingClient(config) as hearing:
        made = Cluster(client, api_server.kubeconfig, hearing)
        try:
            await made.start()
            yield made
        finally:
            await made.close()
