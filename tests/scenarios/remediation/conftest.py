"""Modelled nodes with remediation: machines that reboot on request, findings and tests on call."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from muster.api.handover import Handover
from muster.api.names import API_VERSION, HEALTH_CONFIG_MAP, LABEL_POOL, remediation_name
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.preflight import Preflight
from muster.api.quarantine import quarantined
from muster.controlplane.ports import free_port
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.fleet.health.record import observed
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.controller import RemediationController
from muster.fleet.remediation.repairs.steps import LABEL_STEP
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.policy import PodDisruptionBudget
from muster.kube.objects.struct import to_dict
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.apiserver import ApiServer
from tests.support.waiting import until

OPEN = (
    "mode: act\nbreaker: {share: 100%}\nshared: {nodes: 0}\nquarantined: {all: 100%, pool: 100%, team: 100%}\n"
    "working: {all: 1000, pool: 1000, team: 1000}\nspareSeconds: 5\n"
)
"""Explicit settings that hold nothing back."""


class Findings:
    """What is found on nodes, on call; and what becomes of it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def finds(self, name: str, code: str = "79", check: str = "xid", component: str = "0000:3b:00") -> None:
        """The node's agent finds something now."""
        now = datetime.now(UTC).timestamp()
        found = Finding(check=check, component=component, code=code, first_s=now, last_s=now, message="NVRM: it broke")
        await self._says(name, found)

    async def misses(self, name: str, *others: str) -> None:
        """The node's agent reaches all but these now."""
        now = datetime.now(UTC).timestamp()
        common: dict[str, Any] = {"check": "reach", "code": UNREACHED, "message": "no answer"}
        await self._says(name, *(Finding(component=other, first_s=now, last_s=now, **common) for other in others))

    async def _says(self, name: str, *findings: Finding) -> None:
        node = await self.client.get(Node, name)
        with contextlib.suppress(AlreadyExists):
            await self.client.create(NodeHealth(metadata=ObjectMeta(name=name)))
        said = [to_dict(observed(each)) for each in findings]
        status = {"nodeUID": node.uid, "bootID": "b", "time": _text(datetime.now(UTC).timestamp()), "findings": said}
        await self.client.patch(NodeHealth, name, {"status": status}, subresource="status")

    async def tests(self, name: str, *, passed: bool = True) -> None:
        """The node's preflight ends now."""
        node = await self.client.get(Node, name)
        assert node.status.node_info is not None
        spec = {
            "nodeUID": node.uid,
            "bootID": node.status.node_info.boot_id,
            "level": 3,
            "passed": passed,
            "time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        with contextlib.suppress(AlreadyExists):
            body = {"apiVersion": API_VERSION, "kind": "Preflight", "metadata": {"name": name}, "spec": spec}
            await self.client.create(body, kind=Preflight)
            return
        await self.client.patch(Preflight, name, {"spec": spec})

    async def session(self, name: str) -> NodeRemediation | None:
        node = await self.client.get(Node, name)
        try:
            return await self.client.get(NodeRemediation, remediation_name(name, node.uid))
        except NotFound:
            return None

    async def forget(self, names: Collection[str]) -> None:
        """Delete what was written of these nodes."""
        for kind in (NodeHealth, Preflight, NodeRemediation):
            for each in (await self.client.list(kind)).items:
                if any(each.name == name or each.name.startswith(f"{name}-") for name in names):
                    with contextlib.suppress(ApiError):
                        await self.client.delete(kind, each.name)


class Ward(Findings):
    """Nodes of one test, and a controller that looks after them."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        super().__init__(client)
        self.cluster = cluster
        self.handover = Handover()
        self.running: asyncio.Task[None] | None = None
        self.controller: RemediationController | None = None
        self._machines: asyncio.Task[None] | None = None
        self.rebooted: list[str] = []
        self.mends = True

    @property
    def namespace(self) -> str:
        return self.cluster.namespace

    async def add_nodes(self, count: int) -> list[str]:
        names = await self.cluster.add_nodes(count, labels={LABEL_POOL: self.namespace})
        for name in names:
            await self.boot(name)
        return names

    async def boot(self, name: str) -> None:
        """The machine comes up: another boot ID."""
        patch = {"status": {"nodeInfo": {"bootID": uuid.uuid4().hex}}}
        await self.client.patch(Node, name, patch, subresource="status")

    async def configure(self, text: str = OPEN, **more: str) -> None:
        meta = ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=self.namespace)
        made = ConfigMap(metadata=meta, data={CONFIG_KEY: text, **more})
        try:
            await self.client.create(made)
        except AlreadyExists:
            await self.client.patch(ConfigMap, HEALTH_CONFIG_MAP, {"data": made.data}, namespace=self.namespace)

    def start(self, client: Client | None = None) -> RemediationController:
        """A controller that leads."""
        self.controller = RemediationController(
            client or self.client, self.namespace, handover=self.handover, registry=CollectorRegistry()
        )
        self.running = asyncio.create_task(self.controller.run())
        return self.controller

    async def stop(self) -> None:
        """It is killed: whatever it was doing."""
        if self.running is not None:
            self.running.cancel()
            [result] = await asyncio.gather(self.running, return_exceptions=True)
            if isinstance(result, Exception):
                raise result
            self.running = None

    async def rung(self, name: str) -> str:
        if self.running is not None and self.running.done():
            self.running.result()
        session = await self.session(name)
        if session is None:
            return ""
        return session.status.rung if session.status.state == "Open" else str(session.status.state)

    async def until_rung(self, name: str, *wanted: str) -> NodeRemediation:
        async def there() -> bool:
            return await self.rung(name) in wanted

        try:
            await until(f"{name} is at {wanted}", there)
        except AssertionError as error:
            raise AssertionError(f"{error}; {await self.session(name)}") from None
        session = await self.session(name)
        assert session is not None
        return session

    async def out_of_use(self) -> set[str]:
        nodes = (await self.client.list(Node, label_selector=f"{LABEL_POOL}={self.namespace}")).items
        return {node.name for node in nodes if quarantined(node)}

    async def until_out_of_use(self, *names: str) -> None:
        async def there() -> bool:
            return await self.out_of_use() == set(names)

        await until(f"exactly {names} are in quarantine", there)

    async def add_pod(self, name: str, node: str, **meta: Any) -> None:
        body = self.cluster.pod("alone", 0, 1)
        body["metadata"] = {"name": name, "namespace": self.namespace, **meta}
        body["spec"] |= {"nodeName": node, "schedulerName": "default-scheduler"}
        await self.client.create(body)

    async def guard(self, node: str, *budgets: str) -> None:
        """A pod that runs there, and budgets that never let it go."""
        await self.add_pod("guarded", node, labels={"app": "guarded"})
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.patch(Pod, "guarded", {"status": ready}, namespace=self.namespace, subresource="status")
        for name in budgets:
            spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
            meta = {"name": name, "namespace": self.namespace}
            await self.client.create(
                {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
            )

        async def counted() -> bool:
            made = (await self.client.list(PodDisruptionBudget, self.namespace)).items
            return all(each.status.current_healthy == 1 for each in made)

        await until("the budgets have counted it", counted)

    async def pods_on(self, node: str) -> set[str]:
        pods = (await self.client.list(Pod, self.namespace, field_selector=f"spec.nodeName={node}")).items
        return {pod.name for pod in pods if LABEL_STEP not in pod.metadata.labels}

    async def machines(self) -> None:
        """What the machines do: each pod that resets or reboots does its work once."""
        done: set[str] = set()
        while True:
            with contextlib.suppress(ApiError):
                for pod in (await self.client.list(Pod, self.namespace, label_selector=LABEL_STEP)).items:
                    if pod.uid in done or not self.mends:
                        continue
                    done.add(pod.uid)
                    if pod.metadata.labels[LABEL_STEP] == "reboot":
                        await self.boot(pod.spec.node_name)
                        self.rebooted.append(pod.spec.node_name)
                    phase = {"status": {"phase": "Succeeded"}}
                    await self.client.patch(Pod, pod.name, phase, namespace=self.namespace, subresource="status")
            await asyncio.sleep(0.05)

    async def begin(self) -> None:
        self._machines = asyncio.create_task(self.machines())

    async def close(self) -> None:
        for task in (self._machines, self.running):
            if task is not None:
                task.cancel()
        tasks = [task for task in (self._machines, self.running) if task is not None]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await self.forget([self.namespace])
        for result in results:
            if isinstance(result, Exception):
                raise result


class Relay:
    """A way to the API server that can be cut: connections break, new ones are refused."""

    def __init__(self, kubeconfig: str) -> None:
        self._config = load_config(kubeconfig)
        self._far = urlsplit(self._config.server)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = free_port()

    def client(self) -> Client:
        return Client(replace(self._config, server=f"https://127.0.0.1:{self.port}"), timeout_s=5.0)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._far.hostname is not None
        far_reader, far_writer = await asyncio.open_connection(self._far.hostname, self._far.port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


@pytest.fixture
async def ward(api_server: ApiServer) -> AsyncIterator[Ward]:
    async with Client(load_config(api_server.kubeconfig)) as client:
        cluster = Cluster(client, api_server.kubeconfig)
        made = Ward(cluster, client)
        try:
            await cluster.start()
            await made.begin()
            yield made
        finally:
            try:
                await made.close()
            finally:
                await cluster.close()


@pytest.fixture
async def relay(api_server: ApiServer) -> AsyncIterator[Relay]:
    made = Relay(str(api_server.kubeconfig))
    await made.open()
    yield made
    await made.cut()
