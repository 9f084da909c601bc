"""A controller for supervisors under test: the supervisor protocol over TLS, directed by the test, deciding nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from aiohttp import web

from muster.controlplane.children import Child
from muster.kube.connection.pki import CertificateAuthority
from tests.support.loopback import loopback_subnet
from tests.support.waiting import TIMEOUT_S, until

WORKER_PYTHON = os.environ.get("MUSTER_TEST_WORKER_PYTHON", sys.executable)
"""What supervisors run on: an image of a user may have an older Python than Muster itself needs."""
INSTALL = [sys.executable, "-m", "muster.trainingjobs.supervisor", "install"]
KEY = "5f" * 32


@dataclasses.dataclass(eq=False)
class Node:
    """One worker pod: its supervisor process, what it reported, what it is directed to do."""

    name: str
    address: str
    env: dict[str, str]
    log: Path
    process: Child | None = None
    reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    directive: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"revision": 1, "attempt": 0, "desired": "hold", "graceS": 2, "pollS": 5}
    )

    @property
    def latest(self) -> dict[str, Any]:
        return self.reports[-1] if self.reports else {}

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self, command: list[str]) -> None:
        self.process = Child(command, self.log, self.env)


class StubController:
    """Serves `/v1/supervise`, `/v1/report` and `/v1/restore`; `nodes` are the pods it knows, by token.

    `older` are the checkpoints that it chooses, newest first, after one could not be loaded. Without an `address`, it
    has one that no other test is given: its port stays free while it is away.
    """

    def __init__(self, folder: Path, address: str = "") -> None:
        self.subnet = loopback_subnet()
        self.folder, self.address = folder, address or f"{self.subnet}.254"
        self.nodes: dict[str, Node] = {}
        self.changed = asyncio.Condition()
        self.attempt = 0
        self.progress: list[dict[str, Any]] = []
        self.checkpoint: dict[str, Any] | None = None
        self.restores: list[dict[str, Any]] = []
        self.older: list[dict[str, Any]] = []
        self.checkpoint_now = False
        self.backfilled: bool | None = None
        self.unavailable, self.refused = False, 0
        self.authority = CertificateAuthority.create()
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._server: Any = None
        self.supervisor = folder / "bin" / "supervisor.py"
        self.run_command = [WORKER_PYTHON, str(self.supervisor), "run"]
        subprocess.run([*INSTALL, str(folder / "bin")], check=True)

    async def __aenter__(self) -> StubController:
        self.authority.issue_server("stub", [self.address]).write(self.folder / "tls.crt", self.folder / "tls.key")
        await self.serve()
        return self

    async def __aexit__(self, *exc: object) -> None:
        started = [node.process for node in self.nodes.values() if node.process is not None]
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in started))
        await self.away()

    async def serve(self) -> None:
        """Listen; again on the same port after `away`."""
        app = web.Application()
        app.router.add_post("/v1/supervise", self._supervise)
        app.router.add_post("/v1/report", self._report)
        app.router.add_post("/v1/restore", self._restore)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        site = web.TCPSite(self._runner, self.address, self.port, ssl_context=tls, reuse_address=True)
        await site.start()
        self._server = site._server
        self.port = self._server.sockets[0].getsockname()[1]

    async def away(self) -> None:
        """Stop listening and cut every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            # let asyncio see the end of connections that were still in their TLS handshake
            deadline = time.monotonic() + 5
            async with self.changed:
                while self._server._active_count and time.monotonic() < deadline:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), 0.02)

    def node(self, slot: int, **env: str) -> Node:
        """Describe a worker pod at an address that no other test is given."""
        name, address = f"job-{slot}-1", f"{self.subnet}.{slot + 1}"
        token = self.folder / f"token-{slot}"
        token.write_text(f"token-{name}\n")
        workdir = self.folder / f"work-{slot}"
        workdir.mkdir()
        temporary = self.folder / f"tmp-{slot}"
        temporary.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        node = Node(
            name,
            address,
            {
                "PATH": path,
                "HOME": str(workdir),
                "TMPDIR": str(temporary),
                "MUSTER_URL": f"https://{self.address}:{self.port}",
                "MUSTER_CA_DATA": base64.b64encode(self.authority.certificate).decode(),
                "MUSTER_TOKEN_FILE": str(token),
                "MUSTER_NAMESPACE": "default",
                "MUSTER_JOB": "job",
                "MUSTER_JOB_UID": "uid-job",
                "MUSTER_SLOT": str(slot),
                "MUSTER_WORKDIR": str(workdir),
                "POD_NAME": name,
                "POD_UID": f"uid-{name}-{os.getpid()}",  # `stacks` finds ranks of all tests by it
                "POD_IP": address,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **env,
            },
            self.folder / f"log-{slot}",
        )
        self.nodes[f"token-{name}"] = node
        return node

    async def start(self, count: int, **env: str) -> list[Node]:
        """Start so many supervisors and wait until each has joined."""
        nodes = [self.node(slot, **env) for slot in range(count)]
        for node in nodes:
            node.start(self.run_command)
        await self.until(lambda: all(node.latest.get("state") == "idle" for node in nodes), "all joined")
        return nodes

    async def until(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the condition holds; fails with the nodes' logs."""
        try:
            await until(what, condition, timeout_s)
        except AssertionError as error:
            logs = "\n".join(f"== {n.name}: {json.dumps(n.latest)}\n{n.output[-3000:]}" for n in self.nodes.values())
            raise AssertionError(f"{error}\n{logs}") from None

    async def direct(self, node: Node, **directive: Any) -> None:
        """Give a node its next directive."""
        node.directive = {"graceS": 2, "pollS": 5, **directive, "revision": node.directive["revision"] + 1}
        async with self.changed:
            self.changed.notify_all()

    def forget(self) -> None:
        """As a new job begins: no checkpoint."""
        self.checkpoint = None

    async def run(
        self,
        nodes: list[Node],
        attempt: int,
        command: list[str],
        *,
        launcher: str = "mpi",
        ranks_per_node: int = 1,
        grace_s: float = 2,
        ranks_on: Container[int] | None = None,
        **run: Any,
    ) -> None:
        """Direct all nodes, or those with these node ranks, to run the attempt."""
        self.attempt = attempt
        hosts = [{"address": n.address, "shellPort": n.latest["shellPort"], "ranks": ranks_per_node} for n in nodes]
        for rank, node in enumerate(nodes):
            spec = {
                "launcher": launcher,
                "command": command,
                "ranksPerNode": ranks_per_node,
                "nodeRank": rank,
                "nodes": len(nodes),
                "key": KEY,
                "masterAddress": nodes[0].address,
                "masterPort": 29517,
                "hosts": hosts if rank == 0 else [],
                "env": {},
                **run,
            }
            if ranks_on is None or rank in ranks_on:
                await self.direct(node, attempt=attempt, desired="run", graceS=grace_s, run=spec)

    async def hold(self, nodes: list[Node], attempt: int, grace_s: float = 2) -> None:
        """Direct all nodes to hold for the attempt, and wait until they are idle in it."""
        self.attempt = attempt
        for node in nodes:
            await self.direct(node, attempt=attempt, desired="hold", graceS=grace_s)
        await self.until(
            lambda: all(n.latest.get("state") == "idle" and n.latest["attempt"] == attempt for n in nodes), "all idle"
        )

    def _node_of(self, request: web.Request) -> Node:
        node = self.nodes.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if node is None:
            raise web.HTTPUnauthorized
        return node

    async def _supervise(self, request: web.Request) -> web.Response:
        node = self._node_of(request)
        report = await request.json()
        if self.unavailable:
            self.refused += 1
            return web.json_response({"message": "not leading"}, status=503, headers={"Retry-After": "1"})
        assert report["protocol"] == 1
        node.reports.append(report)
        number = len(node.reports)
        async with self.changed:
            self.changed.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self.changed.wait_for(
                        lambda: node.directive["revision"] != report["revision"] or len(node.reports) != number
                    ),
                    node.directive["pollS"],
                )
        return web.json_response(node.directive)

    async def _restore(self, request: web.Request) -> web.Response:
        """Answer as soon as all nodes have loaded the checkpoint, or one could not; "wait" after half a second."""
        self._node_of(request)
        said = await request.json()
        if said["attempt"] != self.attempt:
            return web.json_response({"currentAttempt": self.attempt}, status=409)
        self.restores.append(said)

        def verdict() -> dict[str, Any] | None:
            same = {each["nodeRank"]: each["ok"] for each in self.restores if each["path"] == said["path"]}
            if not all(same.values()):
                paths = [each["path"] for each in self.older]
                index = paths.index(said["path"]) + 1 if said["path"] in paths else 0
                return (
                    {"verdict": "older", "checkpoint": self.older[index]} if index < len(paths) else {"verdict": "none"}
                )
            return {"verdict": "go"} if len(same) == len(self.nodes) else None

        async with self.changed:
            self.changed.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait_for(lambda: verdict() is not None), 0.5)
        return web.json_response(verdict() or {"verdict": "wait"})

    async def _report(self, request: web.Request) -> web.Response:
        self._node_of(request)
        if self.unavailable:
            self.refused += 1
            return web.json_response({"message": "not leading"}, status=503, headers={"Retry-After": "1"})
        report = await request.json()
        if report["attempt"] != self.attempt:
            return web.json_response({"currentAttempt": self.attempt}, status=409)
        self.progress.append(report)
        if report.get("checkpoint"):
            self.checkpoint = report["checkpoint"]
        async with self.changed:
            self.changed.notify_all()
        more = {} if self.backfilled is None else {"backfilled": self.backfilled}
        return web.json_response({"checkpointNow": self.checkpoint_now, **more})
