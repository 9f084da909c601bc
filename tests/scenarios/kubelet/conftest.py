"""A process kubelet on the embedded API server and on a real one, and what tests ask of both."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.embedded.kubelet.sweep import sweep
from muster.kube.client import Client
from muster.kube.config import load_config
from muster.kube.core import ConfigMap, Namespace, ServiceAccount
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.meta import ObjectMeta
from muster.kube.node import Node
from muster.kube.pod import Pod

NAMESPACE = "kubelet-tests"
DEADLINE_S = 30.0


async def eventually(what: str, check: Callable[[], Awaitable[Any]], deadline_s: float = DEADLINE_S) -> Any:
    """Poll until `check` returns something true, and return that."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = await check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.05)


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


@dataclasses.dataclass(frozen=True)
class Cluster:
    """An API server to be a node of."""

    kind: str
    kubeconfig: Path
    kubelet_flags: tuple[str, ...]

    def kubectl(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *arguments],
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture(scope="session")
def embedded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("apiserver")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "muster.embedded.apiserver", "--state-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, (folder / "log").read_text()
        flags = (f"--kubelet-token-file={folder / 'kubelet-token'}", f"--serving-ca={folder}")
        yield Cluster("embedded", Path(json.loads(line)["kubeconfig"]), flags)
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


@pytest.fixture(params=["embedded", "real"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "embedded":
        found: Cluster = request.getfixturevalue("embedded_cluster")
        return found
    real = request.getfixturevalue("real_control_plane")
    if real.control_plane is None:
        pytest.skip("somebody's cluster: its API server does not share a network with this machine's loopback")
    return Cluster("real", real.kubeconfig, (f"--client-ca-file={real.control_plane.ca_path}",))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("cluster") == "real":
            item.add_marker(pytest.mark.real)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(load_config(cluster.kubeconfig)) as found:
        with contextlib.suppress(AlreadyExists):
            await found.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))

        async def account() -> bool:
            try:
                await found.get(ServiceAccount, "default", NAMESPACE)
            except NotFound:
                if cluster.kind == "embedded":
                    await found.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace=NAMESPACE)))
                return False
            return True

        await eventually("the default service account", account)
        yield found


class NodeUnderTest:
    """One kubelet as a process of its own, and the pods on it."""

    def __init__(self, cluster: Cluster, client: Client, folder: Path, flags: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.client = client
        self.name = f"node-{uuid.uuid4().hex[:8]}"
        self.cluster_id = f"test-{uuid.uuid4().hex[:12]}"
        self.state_dir = folder / "node"
        self.log = folder / "kubelet.log"
        self._subnet = f"127.{random.randint(64, 254)}.{random.randint(0, 255)}"
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

        await eventually("the kubelet is ready", ready)

    def _spawn(self, flags: tuple[str, ...]) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "muster.embedded.kubelet",
                    f"--node={self.name}",
                    f"--kubeconfig={self.cluster.kubeconfig}",
                    f"--state-dir={self.state_dir}",
                    f"--cluster-id={self.cluster_id}",
                    f"--address={self._subnet}.1",
                    f"--pod-cidr={self._subnet}.0/24",
                    *self.cluster.kubelet_flags,
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
        await asyncio.to_thread(self._process.wait, 20)
        self._note_end()

    def _note_end(self) -> None:
        with self.log.open("ab") as log:
            log.write(b"#ended#")

    async def stop(self) -> None:
        """End everything of the node, at the end of a test."""
        if self._process is not None and self._process.poll() is None:
            await self.terminate()
        for name in self._pods:
            try:
                await self.client.delete(Pod, name, namespace=NAMESPACE, grace_s=0)
            except ApiError:
                continue
        await self.client.delete(Node, self.name)
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

    async def until(self, pod: Pod, wanted: Callable[[Pod], Any], deadline_s: float = DEADLINE_S) -> Pod:
        newest = pod

        async def check() -> bool:
            nonlocal newest
            newest = await self.client.get(Pod, pod.name, NAMESPACE)
            return bool(wanted(newest))

        try:
            await eventually("the pod is as wanted", check, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {newest.status}\n{self.log.read_text()[-3000:]}") from None
        return newest

    async def finished(self, pod: Pod, deadline_s: float = DEADLINE_S) -> Pod:
        return await self.until(pod, lambda pod: pod.finished, deadline_s)

    async def running(self, pod: Pod) -> Pod:
        return await self.until(pod, lambda pod: pod.status.phase == "Running")

    async def gone(self, pod: Pod, deadline_s: float = DEADLINE_S) -> None:
        async def check() -> bool:
            try:
                return (await self.client.get(Pod, pod.name, NAMESPACE)).uid != pod.uid
            except NotFound:
                return True

        await eventually("the pod is gone", check, deadline_s)

    def logs(self, pod: Pod, *flags: str, container: str = "main") -> str:
        done = self.cluster.kubectl("logs", pod.name, "-c", container, *flags)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    async def config_map(self, data: dict[str, str]) -> str:
        name = f"config-{uuid.uuid4().hex[:8]}"
        await self.client.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data))
        return name


StartNode = Callable[..., Awaitable[NodeUnderTest]]


@pytest.fixture
async def start_node(cluster: Cluster, client: Client, tmp_path: Path) -> AsyncIterator[StartNode]:
    nodes: list[NodeUnderTest] = []

    async def start(*flags: str) -> NodeUnderTest:
        folder = tmp_path / f"n{len(nodes)}"
        folder.mkdir()
        node = NodeUnderTest(cluster, client, folder, flags)
        nodes.append(node)
        await node.start()
        return node

    yield start
    for node in nodes:
        await node.stop()


@pytest.fixture
async def node(start_node: StartNode) -> NodeUnderTest:
    return await start_node("--gpus=4", "--cpus=8", "--memory=16Gi", "--sync-period-s=0.5", "--restart-backoff-s=0.3")
