"""A cluster whose nodes need tests: the scheduler asks for them, the controller of preflight makes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import LABEL_PREFLIGHT, TAINT_PREFLIGHT
from muster.api.preflight import Preflight
from muster.fleet.preflight.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.preflight.controller import PreflightController
from muster.fleet.preflight.testpod import PRIORITY_CLASS
from muster.gputest.report import Failure, Gpu, Report
from muster.gputest.summary import summary
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.controller import SchedulerController
from muster.scheduler.plan import Settings
from muster.sim.nodes import EmptyRuntime, SimNodes
from tests.scenarios.scheduler.conftest import GPU, POOL, Cluster
from tests.support.apiserver import ApiServer
from tests.support.hearing import HearingClient
from tests.support.priorityclasses import make_priority_class
from tests.support.waiting import until

CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
PENDING = {"key": TAINT_PREFLIGHT, "value": "pending", "effect": "NoSchedule"}
TEXT = "image: none\nresources: {cpu: 100m, memory: 64Mi}\nretests: {everyHours: 24, atOnce: 4}\n"


@dataclass
class Trusting:
    """Nodes that are simulated, with tests that end when the scenario says so."""

    cluster: Cluster
    sim: SimNodes
    tasks: list[asyncio.Task[None]]
    hearing: HearingClient
    """The scheduler's."""

    @property
    def client(self) -> Client:
        return self.cluster.client

    @property
    def namespace(self) -> str:
        return self.cluster.namespace

    async def configure(self, text: str = TEXT) -> None:
        meta = ObjectMeta(name=CONFIG_MAP, namespace=self.namespace)
        await self.client.create(ConfigMap(metadata=meta, data={CONFIG_KEY: text}))

    def control(self) -> asyncio.Task[None]:
        """Start one more controller of preflight."""
        controller = PreflightController(self.client, self.namespace, "none", registry=CollectorRegistry())
        self.tasks.append(asyncio.create_task(controller.run()))
        return self.tasks[-1]

    def schedule(self) -> None:
        controller = SchedulerController(
            self.hearing,
            self.namespace,
            "test",
            settings=Settings(preflight_required=True),
            registry=CollectorRegistry(),
        )
        self.tasks.append(asyncio.create_task(controller.run(asyncio.Event())))

    async def add_nodes(self, count: int, *, taints: tuple[dict[str, str], ...] = ()) -> list[str]:
        before = set(self.sim.nodes)
        await self.sim.add(count, capacity=CAPACITY, labels={POOL: self.namespace}, taints=taints)
        fresh = sorted(set(self.sim.nodes) - before)
        self.cluster.nodes += fresh
        return fresh

    async def pending(self) -> set[str]:
        """Nodes with the taint."""
        nodes = (await self.client.list(Node, label_selector=f"{POOL}={self.namespace}")).items
        return {node.name for node in nodes if any(taint.key == TAINT_PREFLIGHT for taint in node.spec.taints)}

    async def until_pending(self, *names: str) -> None:
        async def right() -> bool:
            return await self.pending() == set(names)

        await until(f"the taint is on {names or 'no node'}", right)

    async def tests(self) -> dict[str, Pod]:
        """Tests by the node that they are bound to."""
        pods = (await self.client.list(Pod, self.namespace, label_selector=LABEL_PREFLIGHT)).items
        return {pod.spec.node_name: pod for pod in pods if pod.spec.node_name and not pod.terminating}

    async def until_tested(self, *names: str) -> dict[str, Pod]:
        """Wait until tests run on exactly these nodes."""

        async def right() -> dict[str, Pod]:
            found = await self.tests()
            running = all(pod.status.phase == "Running" for pod in found.values())
            return found if set(found) == set(names) and running else {}

        found: dict[str, Pod] = await until(f"tests run on {names}", right)
        return found

    async def end_test(self, name: str, *, passed: bool = True) -> None:
        """As its kubelet does when the test's process has ended."""
        pod = (await self.until_test(name))[name]
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        code = 0 if passed else 1
        ended = {
            "exitCode": code,
            "reason": "Completed" if passed else "Error",
            "message": summary(report(name, passed=passed)).decode(),
            "startedAt": at,
            "finishedAt": at,
        }
        container = {"name": "test", "image": "none", "imageID": "none", "ready": False, "restartCount": 0}
        status = {
            "phase": "Succeeded" if passed else "Failed",
            "containerStatuses": [{**container, "state": {"terminated": ended}}],
        }
        await self.client.patch(Pod, pod.name, {"status": status}, namespace=self.namespace, subresource="status")

    async def until_test(self, name: str) -> dict[str, Pod]:
        async def there() -> dict[str, Pod]:
            found = await self.tests()
            pod = found.get(name)
            return found if pod is not None and pod.status.phase == "Running" else {}

        found: dict[str, Pod] = await until(f"a test runs on {name}", there)
        return found

    async def record(self, name: str) -> Preflight | None:
        try:
            return await self.client.get(Preflight, name)
        except NotFound:
            return None

    async def trusted(self, *names: str, ago: timedelta = timedelta()) -> None:
        """Have all of these tested, wait until they are open, and have their records so old."""
        for name in names:
            await self.end_test(name)

        async def open_to_work() -> bool:
            return not await self.pending() & set(names)

        await until("nodes that passed are open", open_to_work)
        if ago:
            await until("their tests are gone", self._no_test_of(*names))
            time = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name in names:
                await self.hearing.until_heard(await self.client.patch(Preflight, name, {"spec": {"time": time}}))

    def _no_test_of(self, *names: str) -> Callable[[], Awaitable[bool]]:
        async def gone() -> bool:
            pods = (await self.client.list(Pod, self.namespace, label_selector=LABEL_PREFLIGHT)).items
            return not {pod.spec.node_name for pod in pods} & set(names)

        return gone

    async def reboot(self, name: str) -> None:
        self.sim.lose(name)
        await self.sim.recover(name)
        await self.hearing.until_heard(await self.client.get(Node, name))

    async def event(self, reason: str, name: str) -> str:
        """Wait for an Event about the node, and return what it says."""

        async def said() -> str:
            body = await self.client.request("GET", "/apis/events.k8s.io/v1/events")
            ours = (each for each in json.loads(body)["items"] if each["regarding"].get("name") == name)
            return "\n".join(each.get("note", "") for each in ours if each["reason"] == reason)

        found: str = await until(f"{reason} of {name} is said", said)
        return found


def report(node: str, *, passed: bool, level: int = 3) -> Report:
    """What muster.gputest might say."""
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{index}",
            name="NVIDIA H200",
            pci_address=f"0000:{index:02x}:00.0",
            memory_bytes=1,
            figures={"memory_bandwidth_gb_per_s": 4100.0 + index},
        )
        for index in range(8)
    )
    failure = Failure(test="memory", code="wrong-word", gpu="GPU-3", message="word 7 is 1, not 0", remedy="Reset it.")
    return Report(
        node=node,
        level=level,
        backend="nvidia",
        passed=passed,
        started="2026-01-01T00:00:00Z",
        duration_s=1.0,
        budget_s=2.0,
        versions={"driver": "570.124.06"},
        gpus=gpus,
        node_figures={},
        tests=(),
        failures=() if passed else (failure,),
    )


async def priority_class(client: Client) -> None:
    await make_priority_class(client, PRIORITY_CLASS, -4)


@pytest.fixture
async def trusting(api_server: ApiServer) -> AsyncIterator[Trusting]:
    async with Client(load_config(api_server.kubeconfig)) as client:
        cluster = Cluster(client, api_server.kubeconfig)
        options: dict[str, Any] = {"now": lambda: datetime.now(UTC), "start_s": 0.01, "stop_s": 0.01}
        made: Trusting | None = None
        try:
            await cluster.start()
            await priority_class(client)
            async with (
                HearingClient(load_config(api_server.kubeconfig)) as hearing,
                SimNodes(client, runtime=EmptyRuntime(), prefix=cluster.namespace, **options) as sim,
            ):
                made = Trusting(cluster, sim, [], hearing)
                made.schedule()
                yield made
                await stop(made.tasks)
                made.tasks.clear()
                await gone(made)
        finally:
            if made is not None:
                await stop(made.tasks)
            await cluster.close()


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    """End them; one that has failed fails the test."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gone(made: Trusting) -> None:
    for record in (await made.client.list(Preflight)).items:
        with contextlib.suppress(NotFound):
            await made.client.delete(Preflight, record.name)

    async def none_left() -> bool:
        for pod in await made.cluster.pods():
            with contextlib.suppress(NotFound):
                await made.client.delete(Pod, pod.name, namespace=pod.namespace, grace_s=0)
        return not await made.cluster.pods()

    await until("no pod is left", none_left)
