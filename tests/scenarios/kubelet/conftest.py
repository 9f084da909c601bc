"""A process kubelet on the embedded API server and on a real one, and what tests ask of both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.embedded.kubelet.sweep import sweep
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.core import ConfigMap, Namespace, ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.support.apiserver import Api, ApiServer
from tests.support.kubectl import kubectl_program
from tests.support.loopback import loopback_subnet
from tests.support.waiting import TIMEOUT_S, until

NAMESPACE = "kubelet-tests"


def exists(path: str | Path) -> bool:
    return Path(path).exists()


def processes(marker: str) -> list[int]:
    """The processes started with `marker` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker.encode() in variables and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
async def client(api_server_for_kubelets: ApiServer) -> AsyncIterator[Client]:
    async with Client(load_config(api_server_for_kubelets.kubeconfig)) as found:
        with contextlib.suppress(AlreadyExists):
            await found.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))

        async def account() -> bool:
            try:
                await found.get(ServiceAccount, "default", NAMESPACE)
            except NotFound:
                if api_server_for_kubelets.kind == "embedded":
                    await found.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace=NAMESPACE)))
                return False
            return True

        await until("the default service account", account)
        yield found


class NodeUnderTest:
    """One kubelet as a process of its own, and the pods on it."""

    def __init__(self, server: ApiServer, client: Client, folder: Path, flags: tuple[str, ...]) -> None:
        self.server = server
        self.client = client
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.cluster_id = f"test-{uuid.uuid4().hex[:12]}"
        self.state_dir = folder / "node"
        self.log = folder / "kubelet.log"
        self._subnet = loopback_subnet()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._pods: list[str] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, *flags: str) -> None:
        """Start the kubelet and wait until it takes pods."""
        self._spawn(flags)

        async def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()
            return "is ready, listening" in self.log.read_text().rpartition("#ended#")[2]

        await until("the kubelet is ready", ready)

    def _spawn(self, flags: tuple[str, ...]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "muster.embedded.kubelet",
                    f"--node={self.name}",
                    f"--kubeconfig={self.server.kubeconfig}",
                    f"--state-dir={self.state_dir}",
                    f"--cluster-id={self.cluster_id}",
                    f"--address={self._subnet}.1",
                    f"--pod-cidr={self._subnet}.0/24",
                    *self.server.kubelet_flags,
                    *self._flags,
                    *flags,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"SECRET_OF_THE_USER": "leaked"},
            )

    def kill(self) -> None:
        """As when the machine loses power."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._note_end()

    async def terminate(self) -> None:
        """As when the machine is switched off."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, TIMEOUT_S)
        self._note_end()

    def _note_end(self) -> None:
        with self.log.open("ab") as log:
            log.write(b"#ended#")

    async def clear(self) -> None:
        """It runs, and nothing is left of its pods: ready for another test."""
        if self._process is None or self._process.poll() is not None:
            await self.start()
        for name in self._pods:
            with contextlib.suppress(NotFound):
                await self.client.delete(Pod, name, namespace=NAMESPACE, grace_s=0)
        self._pods.clear()
        await until("no process of its pods is left", lambda: not processes(f"MUSTER_CLUSTER_ID={self.cluster_id}"))

    def end(self) -> None:
        """Nothing of it is left, on this machine and on the API server."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(TIMEOUT_S)
        api = Api(self.server.kubeconfig)
        for name in self._pods:
            api.send("DELETE", Pod.RESOURCE.path(NAMESPACE, name), {"gracePeriodSeconds": 0})
        api.send("DELETE", Node.RESOURCE.path(None, self.name))
        assert sweep(self.cluster_id) == 0, "the kubelet left processes behind"

    async def run(self, *command: str, wait: bool = True, container: dict[str, Any] | None = None, **spec: Any) -> Pod:
        """Create a pod with one container `main` that runs `command`; wait until the kubelet reports on it."""
        containers = [{"name": "main", "image": "none", "command": list(command), **(container or {})}]
        return await self.create({"containers": containers, **spec}, wait=wait)

    async def create(self, spec: dict[str, Any], *, wait: bool = True, **metadata: Any) -> Pod:
        name = f"pod-{uuid.uuid4().hex[:8]}"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
            "spec": {
                "nodeName": self.name,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                **spec,
            },
        }
        pod = await self.client.create(body, kind=Pod)
        self._pods.append(name)
        return await self.until(pod, lambda pod: pod.status.start_time is not None) if wait else pod

    async def until(self, pod: Pod, wanted: Callable[[Pod], Any], timeout_s: float = TIMEOUT_S) -> Pod:
        newest = pod

        async def check() -> bool:
            nonlocal newest
            newest = await self.client.get(Pod, pod.name, NAMESPACE)
            return bool(wanted(newest))

        try:
            await until("the pod is as wanted", check, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {newest.status}\n{self.log.read_text()[-3000:]}") from None
        return newest

    async def finished(self, pod: Pod, timeout_s: float = TIMEOUT_S) -> Pod:
        return await self.until(pod, lambda pod: pod.finished, timeout_s)

    async def running(self, pod: Pod) -> Pod:
        return await self.until(pod, lambda pod: pod.status.phase == "Running")

    async def gone(self, pod: Pod, timeout_s: float = TIMEOUT_S) -> None:
        async def check() -> bool:
            try:
                return (await self.client.get(Pod, pod.name, NAMESPACE)).uid != pod.uid
            except NotFound:
                return True

        await until("the pod is gone", check, timeout_s)

    async def serving_port(self) -> int:
        """The port on which the kubelet serves logs and commands."""
        node = json.loads(await self.client.request("GET", Node.RESOURCE.path(None, self.name)))
        return int(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])

    def kubectl_command(self, *arguments: str) -> list[str]:
        return [kubectl_program(), f"--kubeconfig={self.server.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]

    def kubectl(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def logs(self, pod: Pod, *flags: str, container: str = "main") -> str:
        done = self.kubectl("logs", pod.name, "-c", container, *flags)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    async def config_map(self, data: dict[str, str]) -> str:
        name = f"config-{uuid.uuid4().hex[:8]}"
        await self.client.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data))
        return name


StartNode = Callable[..., Awaitable[NodeUnderTest]]


@pytest.fixture
async def start_node(api_server_for_kubelets: ApiServer, client: Client, tmp_path: Path) -> AsyncIterator[StartNode]:
    nodes: list[NodeUnderTest] = []

    async def start(*flags: str) -> NodeUnderTest:
        folder = tmp_path / f"n{len(nodes)}"
        folder.mkdir()
        node = NodeUnderTest(api_server_for_kubelets, client, folder, flags)
        nodes.append(node)
        await node.start()
        return node

    yield start
    for node in nodes:
        await asyncio.to_thread(node.end)


@pytest.fixture(scope="module")
def kept_nodes() -> Iterator[dict[str, NodeUnderTest]]:
    """The nodes of a module, by the kind of their API server."""
    found: dict[str, NodeUnderTest] = {}
    yield found
    for node in found.values():
        node.end()


USUAL = ("--gpus=4", "--cpus=8", "--memory=16Gi", "--sync-period-s=0.5", "--restart-backoff-s=0.3")


@pytest.fixture
async def node(
    api_server_for_kubelets: ApiServer, client: Client, kept_nodes: dict[str, NodeUnderTest], tmp_path: Path
) -> AsyncIterator[NodeUnderTest]:
    """A node without pods; tests of a module have it one after the other."""
    server = api_server_for_kubelets
    if server.kind not in kept_nodes:
        kept_nodes[server.kind] = NodeUnderTest(server, client, tmp_path, USUAL)
        await kept_nodes[server.kind].start()
    node = kept_nodes[server.kind]
    node.client = client
    yield node
    await node.clear()
