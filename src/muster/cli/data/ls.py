"""`muster data ls`: objects of a data set."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from muster.api.words import counted
from muster.cli.data.sizes import size
from muster.cli.data.source import Given, Source, opened, source_of, source_options
from muster.cli.errors import CliError, ExitCode
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.target import Target, cluster_options, resolve
from muster.sdk.data.location import parse_location

if TYPE_CHECKING:
    from muster.sdk.data.store import ObjectInfo

HEADERS = ("SIZE", "MODIFIED", "ETAG", "KEY")
FIRST_ANSWER_S = 20.0
DEADLINE_S = 120.0
"""For each page, once the store has answered."""


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
    """Return the objects by key, at most `limit`, and whether there are more.

    Raises CliError if the store refuses, does not answer within 20 s, or is a folder that does not exist.
    """
    found: list[ObjectInfo] = []
    with opened(source, FIRST_ANSWER_S) as store:
        _check_folder(source)
        next(iter(store.list()), None)  # a user at a terminal does not wait two minutes for a wrong endpoint
    with opened(source, DEADLINE_S) as store:
        for each in store.list():
            if limit is not None and len(found) == limit:
                return found, True
            found.append(each)
    return found, False


def _check_folder(source: Source) -> None:
    """Refuse a folder that does not exist: a store in a folder without objects need not exist either."""
    location = parse_location(source.url)
    if location.scheme != "file" or os.path.isdir(location.prefix):
        return
    state = "is not a folder" if os.path.exists(location.prefix) else "does not exist on this machine"
    raise CliError(
        f"{location.prefix} {state}", "name a folder, or a URL such as s3://BUCKET/PREFIX", ExitCode.NOT_FOUND
    )


def _row(each: ObjectInfo) -> tuple[str, ...]:
    return (size(each.size_bytes), _time(each.modified) or "-", each.etag.strip('"') or "-", each.key)


def _data(each: ObjectInfo) -> dict[str, Any]:
    return {"key": each.key, "bytes": each.size_bytes, "etag": each.etag, "modified": _time(each.modified)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""
