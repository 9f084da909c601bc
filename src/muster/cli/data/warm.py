"""`muster data warm`: downloads a data set into the caches of nodes before a job reads it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.api.words import counted
from muster.cli.data.ls import list_objects
from muster.cli.data.nodes import NodeCache, ask_each, find_caches
from muster.cli.data.sizes import size
from muster.cli.data.source import Given, credentials_to_send, source_of, source_options
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import NODE_NAMES
from muster.cli.output import console, interactive, note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.data.links import Link
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.sdk.data.store import ObjectInfo
    from muster.sdk.data.wire import Message

HEADERS = ("NODE", "BYTES", "BUCKET", "PEERS", "DISK", "ERROR")
SOURCES = ("bucket", "peer", "disk")
_HELLO_S = 30.0
_BLOCK_S = 600
"""Deadline of one block, in seconds."""
_NODES_AT_ONCE = 8
_CONNECTIONS = 4
"""To each node. Small objects would otherwise take as long as the round trips."""


class BlockOf(NamedTuple):
    """One block to download."""

    key: str
    etag: str
    object_bytes: int
    number: int
    block_bytes: int


@click.command("warm")
@source_options()
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    callback=NODE_NAMES,
    help="Node to fill; repeatable (of a job: its nodes).",
)
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def warm_command(given: Given, nodes: tuple[str, ...], system_namespace: str, output: str, target: Target) -> int:
    """Download SOURCE into the caches of nodes, with your own credentials.

    Each node downloads every object that it does not hold. The cache keeps your credentials in memory until the command
    ends. Exit status 1: a node failed.
    """
    if not nodes and not given.is_job:
        raise BadInput("name the nodes with --node", "such as --node node-0 --node node-1")
    return asyncio.run(_warm(resolve(target), given, nodes, system_namespace, output))


async def _warm(cluster: Cluster, given: Given, nodes: Sequence[str], namespace: str, output: str) -> int:
    async with cluster.client() as client:
        source = await source_of(given, cluster, client)
        names = nodes or await _nodes_of(client, cluster, source.job)
        caches = await find_caches(cluster, client, namespace, names)
        objects, _ = await asyncio.to_thread(list_objects, source)
        blocks = blocks_of(objects)
        total = sum(each.block_bytes for each in blocks)
        if not blocks:
            raise CliError(f"{source.url} has no data to download", "check the prefix", ExitCode.NOT_FOUND)
        hello = {
            "op": "hello",
            "version": _version(),
            "store": {"url": source.url, "endpoint": source.access.endpoint, "region": source.access.region},
            "credentials": credentials_to_send(source.access),
            "purpose": "warm",
        }
        with _progress(total, [cache.node for cache in caches]) as advance:

            async def warm(cache: NodeCache, link: Link) -> dict[str, int]:
                await _check_room(link, total)
                done = dict.fromkeys(SOURCES, 0)

                def count(source: str, length: int) -> None:
                    done[source] += length
                    advance(cache.node, length)

                await _download(cache, link, hello, blocks, count)
                return done

            outcomes = await ask_each(caches, warm, _NODES_AT_ONCE)
    if output:
        print_data(
            {
                "url": source.url,
                "bytes": total,
                "nodes": [
                    {"node": each.node, **({"bytes": each.value} if each.value else {"error": str(each.error)})}
                    for each in outcomes
                ],
            },
            output,
        )
    else:
        rows = [
            (each.node, size(sum(each.value.values())), *(size(each.value[source]) for source in SOURCES), "-")
            if each.value is not None
            else (each.node, *["-"] * 4, str(each.error))
            for each in outcomes
        ]
        print_table(HEADERS, rows, ("ERROR",))
        note(f"{counted(len(objects), 'object')}, {size(total)}, from {source.url}")
    return ExitCode.FAILED if any(each.error for each in outcomes) else ExitCode.DONE


def blocks_of(objects: Sequence[ObjectInfo]) -> list[BlockOf]:
    """Return the blocks of the objects, in their order. Empty objects have none."""
    from muster.sdk.data.wire import block_count, block_range

    return [
        BlockOf(each.key, each.etag, each.size_bytes, index, block_range(each.size_bytes, index).length)
        for each in objects
        for index in range(block_count(each.size_bytes))
    ]


async def _download(
    cache: NodeCache, link: Link, hello: Message, blocks: Sequence[BlockOf], count: Callable[[str, int], None]
) -> None:
    """Let a node download the blocks, over a few connections at once. Raises CliError."""
    waiting = deque(blocks)

    async def work(link: Link) -> None:
        await link.ask(hello, _HELLO_S)
        while waiting:
            answer = await link.ask(_request(waiting.popleft()), _BLOCK_S + _HELLO_S)
            count(answer["source"], int(answer["length"]))

    async with contextlib.AsyncExitStack() as opened:
        more = range(min(_CONNECTIONS, len(blocks)) - 1)
        links = [link, *[await opened.enter_async_context(cache.open()) for _ in more]]
        tasks = [asyncio.create_task(work(each)) for each in links]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _request(block: BlockOf) -> dict[str, object]:
    return {
        "op": "warm",
        "key": block.key,
        "etag": block.etag,
        "size": block.object_bytes,
        "index": block.number,
        "deadline_s": _BLOCK_S,
    }


async def _check_room(link: Link, total: int) -> None:
    """Refuse a data set that the cache cannot hold: its end would evict its beginning. Raises CliError."""
    status = await link.ask({"op": "status"}, _HELLO_S)
    room = int(status["size_bytes"]) - int(status["protected_bytes"])
    if total > room:
        raise CliError(f"the data has {size(total)}, and the cache has room for {size(room)}: name a smaller prefix")
    if status["state"] != "ok":
        raise CliError(f"the cache does not use its disk now: {status.get('reason', '')}")


async def _nodes_of(client: Client, cluster: Cluster, name: str) -> list[str]:
    """The nodes of a job's pods. Raises CliError if it has none yet."""
    from muster.cli.jobs.pods import members
    from muster.cli.jobs.watch import get_job

    job = await get_job(client, cluster.namespace, name)
    nodes = [pod.spec.node_name for pod in await members(client, job) if pod.spec.node_name]
    if not nodes:
        raise CliError(f"job '{name}' has no nodes now", "name nodes with --node", ExitCode.CONFLICT)
    return list(dict.fromkeys(nodes))


def _version() -> int:
    from muster.sdk.data.wire import VERSION

    return VERSION


@contextlib.contextmanager
def _progress(total: int, nodes: Sequence[str]) -> Iterator[Callable[[str, int], None]]:
    """Show a bar for each node on a terminal. The function it gives takes a node and a number of bytes."""
    if not interactive():
        yield lambda node, count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console(), transient=True) as shown:
        tasks = {node: shown.add_task(node, total=total) for node in nodes}
        yield lambda node, count: shown.advance(tasks[node], count)
