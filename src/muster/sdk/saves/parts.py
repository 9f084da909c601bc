"""Part records: what one rank of a sharded save has written. Rank 0 waits for all of them before the manifest."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from muster.sdk import place
from muster.sdk.errors import CheckpointNotSaved
from muster.sdk.saves import manifest
from muster.sdk.saves.manifest import BadCheckpoint, Shard

PAUSE_S = 0.1
PAUSE_MAX_S = 2.0
MESSAGE_INTERVAL_S = 30.0
_NAMED_MAX = 8
RUN_ID = "MUSTER_RUN_ID"


class Part(NamedTuple):
    """The shards of one rank.

    Attributes:
        save: the save to which they belong; ranks of the same save have the same value.
        rank: the rank.
        world_size: number of ranks of the job.
        shards: its shards.
        skipped: samples that the rank skipped, as the program gave them.
        problem: why the rank has not saved its shards; "" if it has.
    """

    save: str
    rank: int
    world_size: int
    shards: tuple[Shard, ...]
    skipped: tuple[Any, ...] = ()
    problem: str = ""


def encode(part: Part) -> bytes:
    """The bytes of a part record."""
    said = {
        "version": manifest.VERSION, "save": part.save, "rank": part.rank, "worldSize": part.world_size,
        "problem": part.problem, "skipped": part.skipped,
        "shards": [manifest.shard_as_json(each) for each in part.shards],
    }  # fmt: skip
    return json.dumps(said, separators=(",", ":")).encode()


def parse(data: bytes) -> Part | None:
    """The part record in an object's bytes; None if it is not one of this version."""
    try:
        said: Any = json.loads(data.decode("utf-8"))
        if said["version"] != manifest.VERSION:
            return None
        shards = tuple(manifest.shard_from_json(each) for each in said["shards"])
        skipped = tuple(said["skipped"])
        part = Part(str(said["save"]), int(said["rank"]), int(said["worldSize"]), shards, skipped, str(said["problem"]))
    except (ValueError, TypeError, KeyError, BadCheckpoint):
        return None
    return part if all(each.rank == part.rank for each in part.shards) else None


def save_id(again: int) -> str:
    """The identity of a save, the same on all ranks and different for every run.

    Under Muster the attempt's number is new in each start of the job. Without Muster the launcher gives a number.

    Raises:
        ValueError: several ranks run without Muster and without MUSTER_RUN_ID.
    """
    run = os.environ.get(RUN_ID, "")
    if not place.attempt() and place.world_size() > 1 and not run:
        raise ValueError(
            f"save_checkpoint(sharded=True) without Muster needs {RUN_ID}: a word that all ranks have in common and "
            "that is new in each run. With it, parts of a run that was killed are not mixed into this one"
        )
    return "{}/{}/{}".format(os.environ.get("MUSTER_JOB_UID", ""), place.attempt() or run, again)


def gather(
    read: Callable[[], Mapping[int, Part]],
    save: str,
    world_size: int,
    deadline: float,
    waiting: Callable[[str], object],
) -> list[Part]:
    """Wait until the parts of all ranks are there, and return them in the order of ranks.

    Args:
        read: returns the parts that exist now, by rank.
        save: the save; parts of other saves do not count.
        world_size: number of ranks.
        deadline: when to stop, on the monotonic clock.
        waiting: called from time to time with a message for the user.

    Raises:
        CheckpointNotSaved: a rank failed, or parts were missing at the deadline.
    """
    pause, next_message = PAUSE_S, time.monotonic() + MESSAGE_INTERVAL_S
    while True:
        found = {rank: part for rank, part in read().items() if part.save == save and part.world_size == world_size}
        for rank, part in sorted(found.items()):
            if part.problem:
                raise CheckpointNotSaved(f"rank {rank} did not save its shards: {part.problem}", temporary=True)
        missing = [rank for rank in range(world_size) if rank not in found]
        if not missing:
            return [found[rank] for rank in range(world_size)]
        now = time.monotonic()
        named = ", ".join(map(str, missing[:_NAMED_MAX])) + (", ..." if len(missing) > _NAMED_MAX else "")
        if now >= deadline:
            raise CheckpointNotSaved(
                f"the shards of {len(missing)} of {world_size} ranks were not saved in time (ranks {named}): every "
                "rank must call save_checkpoint with sharded=True, and all nodes must share the folder",
                temporary=True,
            )
        if now >= next_message:
            waiting(f"waiting for the shards of {len(missing)} of {world_size} ranks: {named}")
            next_message = now + MESSAGE_INTERVAL_S
        time.sleep(max(0.0, min(pause, deadline - now)))
        pause = min(PAUSE_MAX_S, pause * 1.5)


def number_of_run() -> int:
    """A number of this run for names of checkpoints; 0 under Muster, where names contain the attempt."""
    run = os.environ.get(RUN_ID, "")
    return 0 if place.attempt() or not run else 1000 * (1 + int(manifest.digest(run.encode())[:8], 16))


def shards_of(parts: Sequence[Part]) -> tuple[Shard, ...]:
    """The shards of all ranks, sorted by key."""
    return manifest.in_order([shard for part in parts for shard in part.shards])


def skipped_of(parts: Sequence[Part]) -> tuple[Any, ...]:
    """The samples that any rank skipped, each one once, in the order of ranks."""
    found: dict[str, Any] = {}
    for part in parts:
        for each in part.skipped:
            found.setdefault(json.dumps(each, sort_keys=True), each)
    return tuple(found.values())
