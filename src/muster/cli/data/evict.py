"""`muster data evict`: removes blocks from the data caches of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from muster.api.words import counted
from muster.cli.data.nodes import NodeCache, ask_each, find_caches
from muster.cli.data.sizes import size
from muster.cli.data.source import Given, Source, source_of, source_options
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import NODE_NAMES
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.data.links import Link
    from muster.cli.target import Cluster

HEADERS = ("NODE", "BLOCKS", "FREED", "IN_USE", "ERROR")
_ANSWER_S = 120.0
_PAGES_MAX = 1000
_COUNTS = ("blocks", "bytes", "kept")


@click.command("evict")
@source_options(required=False)
@click.option("--all", "everything", is_flag=True, help="Remove the blocks of all stores.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", callback=NODE_NAMES, help="Only this node; repeatable.")
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def evict_command(
    given: Given, everything: bool, nodes: tuple[str, ...], system_namespace: str, output: str, target: Target
) -> int:
    """Remove the blocks of SOURCE, or of all stores, from the caches of nodes.

    Blocks that a reader has open stay, and so do the caches' copies of checkpoint shards. Jobs continue: they read from
    the bucket again. Exit status 1: a cache did not answer.
    """
    if everything == bool(given.text):
        raise BadInput("name one of SOURCE and --all", "such as s3://BUCKET/PREFIX")
    return asyncio.run(_evict(resolve(target), given, nodes, system_namespace, output))


async def _evict(cluster: Cluster, given: Given, nodes: Iterable[str], namespace: str, output: str) -> int:
    async with cluster.client() as client:
        source = await source_of(given, cluster, client) if given.text else None
        caches = await find_caches(cluster, client, namespace, nodes)

        async def evict(cache: NodeCache, link: Link) -> dict[str, int]:
            total = dict.fromkeys(_COUNTS, 0)
            for request in await requests_for(link, source):
                answer = await link.ask(request, _ANSWER_S)
                for name in _COUNTS:
                    total[name] += int(answer[name])
            return total

        outcomes = await ask_each(caches, evict)
    failed = any(each.error for each in outcomes)
    if output:
        print_data(
            {"nodes": [{"node": each.node, **(each.value or {"error": str(each.error)})} for each in outcomes]}, output
        )
    else:
        rows = [
            (each.node, str(each.value["blocks"]), size(each.value["bytes"]), str(each.value["kept"]), "-")
            if each.value is not None
            else (each.node, "-", "-", "-", str(each.error))
            for each in outcomes
        ]
        print_table(HEADERS, rows, ("ERROR",))
        freed = sum(each.value["bytes"] for each in outcomes if each.value is not None)
        note(f"{size(freed)} freed on {counted(len(outcomes), 'node')}")
    return ExitCode.FAILED if failed else ExitCode.DONE


async def requests_for(link: Link, source: Source | None) -> list[dict[str, Any]]:
    """Return the requests that remove the blocks of a source; without one, of everything.

    The cache names a store by more than its URL: by its endpoint and region too. So the stores of the same bucket are
    looked up in the cache's list.
    """
    if source is None:
        return [{"op": "evict", "store": "", "prefix": ""}]
    from muster.data.cache.blocks import StoreIdentity
    from muster.sdk.data.location import parse_location

    location = parse_location(source.url)
    prefix, endpoint = location.prefix, source.access.endpoint.rstrip("/").lower()
    wanted: set[tuple[str, str]] = set()
    after = 0
    for _ in range(_PAGES_MAX):
        answer = await link.ask({"op": "ls", "prefix": prefix, "after": after}, _ANSWER_S)
        for each in answer["objects"]:
            store = StoreIdentity.parse(each["store"])
            same = (store.scheme, store.bucket) == (location.scheme, location.bucket)
            if same and endpoint in ("", store.endpoint) and _below(each["key"], prefix):
                wanted.add((each["store"], prefix if each["key"] == prefix or not prefix else f"{prefix}/"))
        if not answer["more"]:
            break
        after = answer["next"]
    return [{"op": "evict", "store": store, "prefix": below} for store, below in sorted(wanted)]


def _below(key: str, prefix: str) -> bool:
    """Return whether a key is the prefix itself, or below it as in a folder."""
    return not prefix or key == prefix or key.startswith(f"{prefix}/")
