"""A kube-apiserver with pods, and a read cache beside it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.readcache.load import MARKER
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.objects.pod import Pod

NAMESPACE = "bench"
START_S = 120.0
_AT_ONCE = 32
_READERS = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},)


@dataclass
class Endpoint:
    """Where clients connect to: the API server, or the cache.

    Attributes:
        url: of the server.
        ca: its authority; None for plain HTTP.
        pid: of its process.
    """

    url: str
    ca: Path | None
    pid: int


class Arena:
    """A control plane with `pods` pods, one on each of as many nodes."""

    def __init__(self, plane: ControlPlane, admin: Client, folder: Path, pods: int) -> None:
        self.plane = plane
        self.admin = admin
        self.folder = folder
        self.pods = pods
        self.token = folder / "token"

    @property
    def apiserver(self) -> Endpoint:
        """The API server."""
        return Endpoint(self.plane.url, self.plane.ca_path, self.plane.pid("kube-apiserver"))

    async def fill(self) -> None:
        """Create the pods, and the account of the readers."""
        kubeconfig = await asyncio.to_thread(
            self.plane.access.service_account_kubeconfig, NAMESPACE, "reader", _READERS
        )
        authorization = await load_config(kubeconfig).credentials.authorization()
        self.token.write_text(authorization.removeprefix("Bearer "))
        environment = [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(10)]
        resources = {"requests": {"cpu": "100m", "memory": "200Mi"}, "limits": {"memory": "400Mi"}}

        async def add(number: int) -> None:
            container = {"name": "c", "image": "registry.example/agent:1", "resources": resources, "env": environment}
            spec = {"containers": [container], "nodeName": f"node-{number}"}
            meta = {"name": f"pod-{number}", "namespace": NAMESPACE, "labels": {"app": "agent"}}
            await self.admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

        await each(self.pods, add)

    async def write(self, number: int) -> None:
        """Change one pod; its annotation says when."""
        patch = {"metadata": {"annotations": {MARKER: str(time.time_ns())}}}
        await self.admin.patch(Pod, f"pod-{number % self.pods}", patch, namespace=NAMESPACE)

    async def version(self) -> str:
        """A resourceVersion of now."""
        answer = await self.admin.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods", params={"limit": "1"})
        found = re.search(rb'"resourceVersion":"(\d+)"', answer)
        assert found is not None
        return found[1].decode()

    async def metric(self, pattern: str) -> float:
        """The sum of the API server's series that match."""
        page = (await self.admin.request("GET", "/metrics")).decode()
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if re.match(pattern, line))


async def each(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Run `work` for every number below `count`, some at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(worker())


@asynccontextmanager
async def arena(pods: int) -> AsyncIterator[Arena]:
    """Start a control plane with pods, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-readcache-") as name:
        folder = Path(name)
        data = folder / "control-plane"
        data.mkdir()
        flags = ["--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--profiling=false"]
        with ControlPlane(directory=data, controller_manager=False, extra_args={"kube-apiserver": flags}) as plane:
            async with Client(load_config(plane.kubeconfig), user_agent="bench", connections=_AT_ONCE) as admin:
                made = Arena(plane, admin, folder, pods)
                await made.fill()
                yield made


class Cache:
    """A read cache in front of the arena's API server, in a process of its own."""

    def __init__(self, where: Arena, *, tls: bool) -> None:
        self._where = where
        self._port, self._metrics = free_port(), free_port()
        self._folder = where.folder / f"cache-{self._port}"
        self._folder.mkdir()
        self._tls = tls
        authority = CertificateAuthority.create()
        authority.issue_server("cache", ["127.0.0.1"]).write(self._folder / "tls.crt", self._folder / "tls.key")
        (self._folder / "ca.crt").write_bytes(authority.certificate)
        self._child: Child | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where clients connect to."""
        assert self._child is not None
        scheme, ca = ("https", self._folder / "ca.crt") if self._tls else ("http", None)
        return Endpoint(f"{scheme}://127.0.0.1:{self._port}", ca, self._child.pid)

    async def start(self) -> None:
        """Start, and wait until it serves."""
        command: list[str | Path] = [sys.executable, "-m", "muster.cli.main", "readcache", "--kind=pods"]
        command += [f"--kubeconfig={self._where.plane.kubeconfig}", f"--listen=127.0.0.1:{self._port}"]
        command += [f"--metrics-listen=127.0.0.1:{self._metrics}", "--log-level=warning"]
        if self._tls:
            command += [f"--tls-cert={self._folder / 'tls.crt'}", f"--tls-key={self._folder / 'tls.key'}"]
        self._child = Child(command, self._folder / "log")
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(self._ready):
                if self._child.exit_code is not None:
                    raise RuntimeError(f"the cache ended:\n{self._child.log_tail()}")
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.stop(grace_s=0)

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop(grace_s=0)

    def log(self) -> str:
        """The end of its log."""
        return "" if self._child is None else self._child.log_tail()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/readyz", timeout=5) as answer:
                return int(answer.status) == 200
        except OSError:
            return False


@asynccontextmanager
async def cache(where: Arena, *, tls: bool) -> AsyncIterator[Cache]:
    """Run a read cache."""
    running = Cache(where, tls=tls)
    await running.start()
    try:
        yield running
    finally:
        running.stop()
