"""The process of many node agents, and waiting for what has to become true."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.gang_spike.cluster import SYSTEM, Cluster
from bench.health.agents import LOG
from muster.api.node_health import NodeHealth
from muster.controlplane.children import Child

PATIENCE_S = 120.0
_RULES = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {
        "apiGroups": ["muster.dev"],
        "resources": ["nodehealths", "nodehealths/status"],
        "verbs": ["get", "create", "patch"],
    },
)


@asynccontextmanager
async def agents(where: Cluster, nodes: Sequence[str], *, token_s: int = 3600) -> AsyncIterator[Child]:
    """Run an agent for each of these nodes; yields when all have written their record.

    The kernel log of a node is below `logs` in the cluster's directory. Their token is valid for `token_s` seconds.
    """
    folder = logs(where)
    for name in nodes:
        (folder / name).mkdir(parents=True)
        (folder / name / LOG).touch()
    kubeconfig = where.plane.access.service_account_kubeconfig(SYSTEM, "health-agents", _RULES, duration_s=token_s)
    command = [sys.executable, "-m", "bench.health.agents", str(kubeconfig), str(folder), *nodes]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    child = Child(command, where.directory / "agents.log", environment)

    async def reported() -> bool:
        return len((await where.admin.list_all(NodeHealth)).items) >= len(nodes)

    try:
        await until(reported, "all agents have reported")
        yield child
    finally:
        child.stop()


def logs(where: Cluster) -> Path:
    """The parent of the nodes' folders with their kernel logs."""
    return where.directory / "logs"


async def until(done: Callable[[], Awaitable[bool]], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until it is so. Raises TimeoutError."""
    deadline = time.monotonic() + patience_s
    while not await done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience_s:g} s: {what}")
        await asyncio.sleep(0.1)
