"""Restores of a checkpoint's shards: from the bucket, from the node that saved them, and from a peer with copies."""

from __future__ import annotations

import hashlib
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
from msgspec.structs import replace

from bench.data.caches import NodeCache
from bench.data.processes import Measured, run_alone
from bench.data.reading import Say, line
from bench.data.server import BUCKET
from bench.data.sharing import gang_of_nodes
from bench.data.stage import Stage
from muster.sdk.saves.manifest import Shard
from muster.sdk.saves.node_shards import NodeShards
from tests.support.waiting import eventually

PREFIX = "restore"
CHECKPOINT = f"s3://{BUCKET}/{PREFIX}"
SHARDS = 4
SAVED, REPLACED = 0, 2
"""The node that saved the shards, whose partner is the next node, and a node that has joined since."""


def restores(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """One rank's shards, each way, by turns. Checksums are compared in all of them."""
    results: dict[str, list[Measured]] = defaultdict(list)
    folder = stage.folder / "restores"
    folder.mkdir()
    shards = _shards(stage, folder)
    for repetition in range(repetitions):
        with gang_of_nodes(folder / f"gang-{repetition}", 3) as (caches, tickets):
            _keep(folder, shards, caches, tickets)
            for side, node, source in (
                ("from_bucket", SAVED, ""),
                ("from_own_disk", SAVED, "disk"),
                ("from_peer", REPLACED, "peer"),
            ):
                cache = caches[node]
                environment = {
                    **stage.server.environment(),
                    **cache.environment(),
                    "MUSTER_CACHE_TICKET": str(tickets[cache.name]),
                }
                settings = stage.settings(shards=shards, checkpoint=CHECKPOINT, source=source)
                before = sum(each.cpu_s() for each in caches)
                with stage.server.counted() as used:
                    done = run_alone("restore_node" if source else "restore_bucket", settings, environment)
                done = replace(
                    done,
                    cpu_s=done.cpu_s + sum(each.cpu_s() for each in caches) - before,
                    downloads=used["sent_bytes"] / done.bytes,
                )
                results[side].append(done)
                say(line(side, done))
    return results


def _shards(stage: Stage, folder: Path) -> list[dict[str, Any]]:
    """Write the shards into the bucket and into a folder; returns their names, sizes and checksums."""
    store = stage.server.store(PREFIX)
    found = []
    for number in range(SHARDS):
        data = random.Random(number).randbytes(stage.total_bytes // (4 * SHARDS))
        key = f"rank-00000-{number}"
        (folder / key).write_bytes(data)
        obstore.put(store, key, data)
        found.append({"key": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return found


def _keep(
    folder: Path, shards: Sequence[dict[str, Any]], caches: Sequence[NodeCache], tickets: dict[str, Path]
) -> None:
    """Let the first node keep the shards, and wait until its partner has copies."""
    connections = [NodeShards(str(cache.socket), str(tickets[cache.name])) for cache in caches]
    for each in shards:
        descriptor = os.open(folder / each["key"], os.O_RDONLY)
        try:
            connections[SAVED].keep(_shard(each), descriptor, CHECKPOINT, 1, CHECKPOINT)
        finally:
            os.close(descriptor)

    copies = caches[1].folder / "state" / "shards"

    def copied() -> bool:
        return sum(each.is_file() for each in copies.rglob("*")) == len(shards)

    eventually("the partner has copies of the shards", copied)
    for connection in connections:
        connection.close()


def _shard(each: dict[str, Any]) -> Shard:
    return Shard(each["key"], 0, each["size"], each["sha256"], "")
