"""Collects evidence from a cluster: metrics twice, and the parts of all collectors while the window lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from muster.api.finding import Scale
from muster.api.reader import Reader
from muster.doctor.evidence import NUMBER_OF_NODES, Evidence
from muster.doctor.rule import Collector, Context, Options
from muster.doctor.samples import Page, Server, compare, parse
from muster.doctor.servers import open_servers
from muster.kube.client import Client
from muster.kube.errors import ApiError
from muster.kube.objects.struct import decode

_METRICS = "requests, latency, memory and webhooks of the API server"
_METRICS_RIGHT = "get nonResourceURL /metrics"
DEFAULT_FACTOR = 10
"""Times today's nodes, if the user plans nothing else."""


async def collect(
    reader: Reader,
    options: Options,
    families: Collection[str],
    collectors: Sequence[Collector],
    progress: Callable[[str], None] = lambda text: None,
) -> Evidence:
    """Read everything that the rules need, within the window and a few requests.

    Args:
        reader: the cluster.
        options: the user's options.
        families: metric families to keep.
        collectors: read the parts.
        progress: receives a short text about the current step.

    Raises:
        ApiError: the API server cannot be reached, or does not accept the credentials.
    """
    progress("reading the metrics")
    version = await _version(reader)
    nodes = await count_nodes(reader)
    async with AsyncExitStack() as stack:
        clients = await open_servers(reader, stack)
        first = await _pages(reader, clients, families)
        progress(f"watching the API server for {options.window_s:g} s")
        context = Context(reader, options, nodes or 0, tuple(read.page for read in first.values()), clients)
        waited = asyncio.sleep(options.window_s if first else 0)
        _, *parts = await asyncio.gather(waited, *(collector(context) for collector in collectors))
        progress("reading the metrics again")
        servers = _compared(reader, first, await _pages(reader, tuple(first), families))
    return Evidence(
        scale=Scale(nodes or 0, options.planned or max(nodes or 1, 1) * DEFAULT_FACTOR, nodes is not None),
        version=version,
        servers=servers,
        window_s=max((server.seconds for server in servers), default=0.0),
        parts={type(part): part for part in parts if part is not None},
        unseen=tuple(reader.unseen),
    )


async def _version(reader: Reader) -> str:
    """Return the version of the API server. This first request also shows whether there is one."""
    reader.cost.requests += 1
    try:
        body = await reader.client.request("GET", "/version")
    except ApiError as error:
        if error.status in (0, 401):
            raise
        reader.note("the version of the API server", error.message)
        return ""
    reader.cost.bytes += len(body)
    return str(decode(body, dict).get("gitVersion", ""))


async def count_nodes(reader: Reader) -> int | None:
    """Return the number of nodes, by a list of one object; None if it cannot be read."""
    listed = await reader.list("/api/v1/nodes", what=NUMBER_OF_NODES, limit=1, metadata_only=True, sample=True)
    return len(listed.items) + listed.remaining if listed is not None else None


class _Read(NamedTuple):
    """A page of metrics, and when it was read: in seconds since 1970, and by the monotonic clock."""

    page: Page
    at: float
    clock: float


async def _pages(reader: Reader, clients: Sequence[Client], families: Collection[str]) -> dict[Client, _Read]:
    found: dict[Client, _Read] = {}
    for client in clients:  # one after the other: a page may have many megabytes
        body = await reader.read("/metrics", what=_METRICS, right=_METRICS_RIGHT, accept="text/plain", client=client)
        if body is not None:
            found[client] = _Read(parse(body.decode("utf-8", "replace"), families), time.time(), time.monotonic())
    return found


def _compared(reader: Reader, first: dict[Client, _Read], second: dict[Client, _Read]) -> tuple[Server, ...]:
    servers = []
    for client, after in second.items():
        before, address = first[client], client.config.server
        server = compare(address, before.page, after.page, after.clock - before.clock, after.at)
        if server is None:
            reader.note(_METRICS, f"another API server answered the second request to {address}")
        else:
            servers.append(server)
    return tuple(servers)
