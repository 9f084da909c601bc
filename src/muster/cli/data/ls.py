"""`muster data ls`: objects of a data set."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from muster.api.words import counted
from muster.cli.data.sizes import size
from muster.cli.data.source import Given, Source, opened, source_of, source_options
from muster.cli.errors import ExitCode
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.sdk.data.store import ObjectInfo

HEADERS = ("SIZE", "MODIFIED", "ETAG", "KEY")
DEADLINE_S = 120.0


@click.command("ls")
@source_options()
@click.option("--limit", type=click.IntRange(1), metavar="COUNT", help="Show at most so many objects (all).")
@output_option("json", "yaml")
@cluster_options()
def ls_command(given: Given, limit: int | None, output: str, target: Target) -> int:
    """List the objects of SOURCE, by key, with your own credentials."""
    return asyncio.run(_ls(given, limit, output, target))


async def _ls(given: Given, limit: int | None, output: str, target: Target) -> int:
    source = await _source(given, target)
    found, more = await asyncio.to_thread(list_objects, source, limit)
    total = sum(each.size_bytes for each in found)
    if output:
        print_data(
            {"url": source.url, "objects": [_data(each) for each in found], "bytes": total, "more": more}, output
        )
        return ExitCode.DONE
    if not found:
        note(f"{source.url} has no objects")
        return ExitCode.DONE
    print_table(HEADERS, [_row(each) for each in found], ("ETAG", "MODIFIED"))
    note(f"{counted(len(found), 'object')}, {size(total)}{', and more' if more else ''} in {source.url}")
    return ExitCode.DONE


async def _source(given: Given, target: Target) -> Source:
    if not given.is_job:
        return await source_of(given, None, None)
    cluster = resolve(target)
    async with cluster.client() as client:
        return await source_of(given, cluster, client)


def list_objects(source: Source, limit: int | None = None) -> tuple[list[ObjectInfo], bool]:
    """Return the objects by key, at most `limit`, and whether there are more. Raises CliError."""
    found: list[ObjectInfo] = []
    with opened(source, DEADLINE_S) as store:
        for each in store.list():
            if limit is not None and len(found) == limit:
                return found, True
            found.append(each)
    return found, False


def _row(each: ObjectInfo) -> tuple[str, ...]:
    return (size(each.size_bytes), _time(each.modified) or "-", each.etag.strip('"') or "-", each.key)


def _data(each: ObjectInfo) -> dict[str, Any]:
    return {"key": each.key, "bytes": each.size_bytes, "etag": each.etag, "modified": _time(each.modified)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""
