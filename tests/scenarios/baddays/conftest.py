"""One cluster for all bad days of a module: an API server of its own that may be stopped, nodes, a controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from tests.scenarios.trainingjobs.conftest import Arena, TestNode, processes_of
from tests.support.ownserver import OwnServer, embedded_server, real_server
from tests.support.waiting import until

NODE_GRACE_S = 16
"""Silence after which a node is not Ready: days are shorter here."""

BEGIN = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    last = muster.last_checkpoint()
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    mine = "%d-%d" % (muster.attempt(), muster.rank())
    (folder / ("began-" + mine)).write_text(str(step))
    (folder / ("pid-" + mine)).write_text(str(os.getpid()))
    save = lambda path: pathlib.Path(path).write_text(str(step))
    while not (folder / "done").exists():
        step += 1
"""
"""How each rank begins: from the last checkpoint, and where it says so; what it does at each step follows."""

TRAIN = f"""{BEGIN}
        if muster.rank() == 0:
            muster.report(step=step, total_steps=100000)
            if step % 10 == 0:
                muster.save_checkpoint(step, save)
        time.sleep(0.05)
"""


class Job:
    """A training job under test and the folder its ranks write to."""

    def __init__(self, bad: BadDay, name: str) -> None:
        self.bad, self.name, self.folder = bad, name, bad.arena.folder / name
        self.folder.mkdir()

    def pid(self, attempt: int, rank: int) -> int:
        return int((self.folder / f"pid-{attempt}-{rank}").read_text())

    async def runs(self, attempt: int, ranks: int = 2) -> None:
        """The attempt runs, every rank of it."""
        await self.bad.arena.phase(self.name, "Running", attempt)

        files = [self.folder / f"pid-{attempt}-{rank}" for rank in range(ranks)]

        async def written() -> bool:
            return all(file.exists() and file.read_text() for file in files)

        await until(f"ranks of attempt {attempt} run", written)

    async def status(self) -> Any:
        return await self.bad.arena.status(self.name)

    async def reaches(self, wanted: Callable[[Any], Any]) -> Any:
        return await self.bad.arena.reaches(self.name, wanted)

    async def pods(self) -> dict[int, Any]:
        """Pods that are not going away, by slot."""
        pods = await self.bad.arena.pods(self.name)
        return {int(pod.metadata.labels["muster.dev/slot"]): pod for pod in pods if not pod.terminating}

    async def node_of(self, slot: int) -> TestNode:
        pods = await self.pods()
        return next(node for node in self.bad.arena.nodes if node.name == pods[slot].spec.node_name)

    async def saved(self, attempt: int) -> int:
        """The step of the newest checkpoint, which this attempt wrote."""
        checkpoint = (await self.status()).last_checkpoint
        assert checkpoint is not None
        assert checkpoint.attempt == attempt
        return int(checkpoint.step)

    async def ends(self, attempt: int) -> Any:
        (self.folder / "done").touch()
        return await self.bad.arena.phase(self.name, "Succeeded", attempt)


class BadDay:
    """A cluster, made whole again before each test, and the jobs it had."""

    def __init__(self, arena: Arena, server: OwnServer) -> None:
        self.arena, self.server = arena, server
        self._jobs = 0

    async def train(self, program: str = TRAIN, **spec: Any) -> Job:
        self._jobs += 1
        job = Job(self, f"job-{self._jobs}")
        spec = {"checkpoint": {"path": f"{job.folder}/checkpoints"}, **spec}
        await self.arena.submit(job.name, program.format(folder=str(job.folder)), **spec)
        return job


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    if request.param == "embedded":
        with embedded_server(tmp_path_factory.mktemp("bad"), f"--node-monitor-grace-s={NODE_GRACE_S}") as server:
            yield server
        return
    graces = [f"--node-monitor-grace-period={NODE_GRACE_S}s", f"--node-startup-grace-period={NODE_GRACE_S}s"]
    with real_server(request, {"kube-controller-manager": graces}) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(own_server: OwnServer) -> AsyncIterator[BadDay]:
    with tempfile.TemporaryDirectory(prefix="muster-bad-") as folder:
        async with Client(load_config(own_server.kubeconfig)) as client:
            arena = Arena(own_server, client, Path(folder))
            try:
                await arena.begin(nodes=3)
                yield BadDay(arena, own_server)
            finally:
                arena.end()


@pytest_asyncio.fixture(loop_scope="module")
async def bad(cluster: BadDay) -> AsyncIterator[BadDay]:
    await cluster.arena.whole(nodes=3)
    yield cluster
    await cluster.arena.clear()


def lives(pid: int) -> bool:
    """Whether the process runs."""
    return os.path.exists(f"/proc/{pid}")


def supervisor_of(pod_uid: str) -> int:
    """The process 1 of a worker."""
    for pid in processes_of(pod_uid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:2] and words[1].endswith(b"supervisor.py") and words[2] == b"run":
            return pid
    raise AssertionError(f"no supervisor runs in pod {pod_uid}")


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """The processes stand still in the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def stays(what: str, check: Callable[[], Any], seconds: float) -> None:
    """It is so for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert await check(), what
        await asyncio.sleep(0.2)
