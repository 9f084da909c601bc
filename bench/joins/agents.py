"""Agents in the pods of the DaemonSets: they read from the API server when they start, each with its own client.

They run in a process of their own, apart from simulated nodes and measurements. It reads lines `UID KUBECONFIG NODE`
and writes `UID SECONDS REFUSED` once that agent has all it needs.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from pathlib import Path

import aiohttp
import uvloop

from muster.kube.connection.config import ClusterConfig, load_config

_HEADERS = {"Accept": "application/vnd.kubernetes.protobuf", "Accept-Encoding": "gzip"}
"""As Kubernetes' own client asks for built-in kinds. Nothing is unpacked here: what that costs is the node's."""
_RETRY_S = 1.0


class _Account:
    """A service account, whose token all agents of one DaemonSet have."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config: ClusterConfig = load_config(kubeconfig)
        self.server = self._config.server
        self.tls: ssl.SSLContext | None = self._config.ssl_context()

    async def headers(self) -> dict[str, str]:
        return {**_HEADERS, "Authorization": await self._config.credentials.authorization()}


async def _start(uid: str, account: _Account, node: str) -> None:
    """Starts one agent: a connection of its own, the list of nodes, and of the pods of its node."""
    began, refused = time.perf_counter(), 0
    connector = aiohttp.TCPConnector(ssl=account.tls or True, limit=1)
    headers = await account.headers()
    async with aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=False) as session:
        for path in ("nodes?", f"pods?fieldSelector=spec.nodeName%3D{node}&"):
            while True:
                pause_s = _RETRY_S
                try:
                    async with session.get(f"{account.server}/api/v1/{path}resourceVersion=0") as answer:
                        async for _ in answer.content.iter_any():
                            pass
                    if answer.status == 200:
                        break
                    if answer.status not in (429, 500, 503, 504):
                        sys.exit(f"{path}: {answer.status}")
                    refused += answer.status == 429
                    pause_s = float(answer.headers.get("Retry-After", _RETRY_S))
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                await asyncio.sleep(pause_s)
    sys.stdout.write(f"{uid} {time.perf_counter() - began:.6f} {refused}\n")
    sys.stdout.flush()


async def _serve() -> None:
    accounts: dict[str, _Account] = {}
    agents: set[asyncio.Task[None]] = set()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        uid, kubeconfig, node = line.decode().split()
        if kubeconfig not in accounts:
            accounts[kubeconfig] = _Account(Path(kubeconfig))
        task = asyncio.create_task(_start(uid, accounts[kubeconfig], node))
        agents.add(task)
        task.add_done_callback(agents.discard)


if __name__ == "__main__":
    uvloop.run(_serve())
