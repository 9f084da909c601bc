"""`muster controller` as a process, nodes as process kubelets, supervisors as they are; on both API servers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import TrainingJobStatus
from muster.controlplane.ports import free_port
from muster.embedded.kubelet.sweep import sweep
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.config import CONFIG_KEY, CONFIG_MAP
from tests.support.apiserver import Api, ApiServer
from tests.support.forkserver import Copy, fork_server
from tests.support.loopback import loopback_subnet
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import TIMEOUT_S, until

DEADLINE_S = 90.0


class Process:
    """A program of ours, its log, and how it is ended."""

    def __init__(self, log: Path, *command: str, env: dict[str, str] | None = None) -> None:
        self.log = log
        self.popen: subprocess.Popen[bytes] | Copy
        if env is None:
            self.popen = fork_server().start(log, *command)
            return
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=out, stderr=out, env=os.environ | env
            )

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(TIMEOUT_S)

    def terminate(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
        self.popen.wait(TIMEOUT_S)


class TestNode:
    """A process kubelet. Each has a cluster id of its own, so that all of a node can be lost at once."""

    __test__ = False

    def __init__(self, folder: Path, server: ApiServer, name: str = "") -> None:
        self.name = name or f"node-{uuid.uuid4().hex[:8]}"
        self.cluster_id = f"test-{uuid.uuid4().hex[:12]}"
        subnet = loopback_subnet()
        self.state = folder / f"{self.name}-{self.cluster_id}"
        self._command = (
            "muster.embedded.kubelet",
            f"--node={self.name}",
            f"--kubeconfig={server.kubeconfig}",
            f"--state-dir={self.state}",
            f"--cluster-id={self.cluster_id}",
            f"--address={subnet}.1",
            f"--pod-cidr={subnet}.0/24",
            "--gpus=4",
            "--cpus=8",
            "--memory=16Gi",
            "--sync-period-s=0.5",
            *server.kubelet_flags,
        )
        self._log = folder / f"{self.name}.log"
        self.process = Process(self._log, *self._command)

    def restart(self) -> None:
        """The kubelet dies and comes back. It takes its pods' processes with it, as a machine that restarts does."""
        self.process.kill()
        self.process = Process(self._log, *self._command)

    async def come_back_with(self, client: Client, gpus: int) -> None:
        """The Node is deleted, and is there again with another count of GPUs, its label `gpus`; its pods run on.

        Registered as by a kubelet that restarts and leaves its containers alone. This one cannot (see `restart`), so
        it keeps running, and does not notice.
        """
        node = await client.get(Node, self.name)
        await client.delete(Node, self.name)
        counts = {"nvidia.com/gpu": str(gpus)}
        status = msgspec.structs.replace(
            node.status, capacity=node.status.capacity | counts, allocatable=node.status.allocatable | counts
        )
        labels = {**node.metadata.labels, "gpus": str(gpus)}
        await client.create(Node(metadata=ObjectMeta(name=node.name, labels=labels), status=status))

    def lose(self) -> None:
        """As when the machine loses power: kubelet, supervisors and ranks are gone at once."""
        self.process.kill()
        sweep(self.cluster_id)


def processes_of(pod_uid: str) -> list[int]:
    """Every process that was started for a pod and lives."""
    mark, found = f"MUSTER_POD_UID={pod_uid}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


class Arena:
    """Nodes and a controller for the tests of a module, one after the other: each has a namespace of its own."""

    def __init__(self, server: ApiServer, client: Client, folder: Path, scheduler_config: str = "") -> None:
        self.server, self.client, self.folder = server, client, folder
        self._scheduler_config = scheduler_config
        self.namespace = ""
        self.system = f"s{uuid.uuid4().hex[:10]}"
        self.nodes: list[TestNode] = []
        self.controllers: list[Process] = []
        self._as_usual = False
        self.port = free_port()

    async def begin(self, nodes: int) -> None:
        """A new namespace, and a cluster that is whole."""
        if not self.controllers:
            await install_kinds(self.client)
            await make_namespace(self.client, self.system)
            if self._scheduler_config:
                named = ObjectMeta(name=CONFIG_MAP, namespace=self.system)
                await self.client.create(ConfigMap(metadata=named, data={CONFIG_KEY: self._scheduler_config}))
        self.namespace = f"t{uuid.uuid4().hex[:10]}"
        await make_namespace(self.client, self.namespace)
        await self.whole(nodes)

    async def whole(self, nodes: int) -> None:
        """As many nodes that are Ready and running, and a controller."""
        if not self.controllers or self.controllers[-1].popen.poll() is not None:
            self.control()
        for node in list(self.nodes):
            if node.process.popen.poll() is not None:
                await self.remove(node)
        while len(self.nodes) > nodes:
            node = self.nodes[-1]
            node.lose()
            await self.remove(node)
        while len(self.nodes) < nodes:
            self.add_node()
        await until("nodes are ready", self._nodes_ready, DEADLINE_S)

    async def remove(self, node: TestNode) -> None:
        """Forget a node that is lost."""
        self.nodes.remove(node)
        sweep(node.cluster_id)
        with contextlib.suppress(NotFound):
            await self.client.delete(Node, node.name)

    async def clear(self) -> None:
        """No job of the namespace is left, none of their pods and processes, and no controller that is not as usual."""
        if not self._as_usual:
            self.controllers[-1].terminate()
        for job in (await self.client.list(TrainingJob, self.namespace)).items:
            await self.client.delete(TrainingJob, job.name, namespace=self.namespace)
        lost = {node.name for node in self.nodes if node.process.popen.poll() is not None}
        for pod in (await self.client.list(Pod, self.namespace)).items:
            # On a lost node no kubelet reports that it has ended. Elsewhere the garbage collector would delete it, but
            # after a minute without a watch it may take half a minute to list again.
            grace_s = 0 if pod.spec.node_name in lost else 1
            with contextlib.suppress(NotFound):
                await self.client.delete(Pod, pod.name, namespace=self.namespace, grace_s=grace_s)

        async def gone() -> bool:
            return not (await self.client.list(Pod, self.namespace)).items

        await until("pods are gone", gone)

    def end(self) -> None:
        """No process is left."""
        for process in self.controllers:
            process.terminate()
        for node in self.nodes:
            node.lose()

    def add_node(self, name: str = "") -> TestNode:
        node = TestNode(self.folder, self.server, name)
        self.nodes.append(node)
        return node

    def control(self, *flags: str, env: dict[str, str] | None = None) -> Process:
        """Start a controller; like the one before it, it answers at the same address."""
        self._as_usual = not flags and env is None
        process = Process(
            self.folder / f"controller-{len(self.controllers)}.log",
            "muster.cli.main",
            "controller",
            f"--kubeconfig={self.server.kubeconfig}",
            f"--namespace={self.system}",
            f"--listen=127.0.0.1:{self.port}",
            "--lease-duration=3",
            *flags,
            env=env,
        )
        self.controllers.append(process)
        return process

    async def _nodes_ready(self) -> bool:
        known = {node.name for node in (await self.client.list(Node)).items if node.ready}
        return {node.name for node in self.nodes} <= known

    async def submit(self, name: str, program: str, **spec: Any) -> None:
        """A job whose ranks run a Python program; `launcher` none and two nodes with four GPUs where not given."""
        file = self.folder / f"{name}.py"
        file.write_text(textwrap.dedent(program))
        body = {
            "replicas": 2,
            "gpusPerNode": 4,
            "ranksPerNode": 1,
            "launcher": "none",
            "image": "none",
            "command": [sys.executable, str(file)],
            "stopGraceSeconds": 2,
            **spec,
        }
        await self.client.create(
            {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": body,
            }
        )

    async def job(self, name: str) -> TrainingJob:
        return await self.client.get(TrainingJob, name, self.namespace)

    async def status(self, name: str) -> TrainingJobStatus:
        return (await self.job(name)).status

    async def pods(self, name: str) -> list[Pod]:
        selector = f"muster.dev/gang={name}"
        return (await self.client.list(Pod, self.namespace, label_selector=selector)).items

    async def reaches(
        self, name: str, wanted: Callable[[TrainingJobStatus], Any], timeout_s: float = DEADLINE_S
    ) -> TrainingJobStatus:
        """Wait until the job's status is as wanted; where it never is, show it and the controller's log."""
        newest = TrainingJobStatus()

        async def check() -> bool:
            nonlocal newest
            newest = await self.status(name)
            return bool(wanted(newest))

        try:
            await until("the status is as wanted", check, timeout_s)
        except AssertionError as error:
            logs = "\n".join(process.log.read_text()[-4000:] for process in self.controllers)
            raise AssertionError(f"{error}: {newest}\n{logs}") from None
        return newest

    async def phase(self, name: str, phase: str, attempt: int | None = None) -> TrainingJobStatus:
        return await self.reaches(name, lambda status: status.phase == phase and attempt in (None, status.attempt))


@pytest.fixture(scope="module")
def arenas() -> Iterator[dict[str, Arena]]:
    """Those of a module, by the kind of their API server."""
    found: dict[str, Arena] = {}
    yield found
    for arena in found.values():
        arena.end()
        api = Api(arena.server.kubeconfig)
        for node in arena.nodes:
            api.send("DELETE", Node.RESOURCE.path(None, node.name))


@pytest.fixture
async def arena(
    api_server_for_kubelets: ApiServer, arenas: dict[str, Arena], tmp_path: Path, scheduler_config: str
) -> AsyncIterator[Arena]:
    """Three unused nodes and a controller; what a test does to them is mended before the next."""
    server = api_server_for_kubelets
    async with Client(load_config(server.kubeconfig)) as client:
        if server.kind not in arenas:
            arenas[server.kind] = Arena(server, client, tmp_path, scheduler_config)
        arena = arenas[server.kind]
        arena.client, arena.folder = client, tmp_path
        await arena.begin(nodes=3)
        yield arena
        await arena.clear()
