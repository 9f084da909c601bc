"""The manifest of a checkpoint: who wrote it, at which step, and the size and checksum of each shard.

It is written last and create-only, so a checkpoint without a manifest is unfinished. The controller's record holds the
SHA-256 of its bytes, which makes the whole checkpoint verifiable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, NamedTuple, Sequence

from muster.sdk import place, records

VERSION = 1
BYTES_MAX = 64 << 20
"""Largest manifest that is read: enough for about 300,000 shards."""
KEY_CHARS_MAX = 1024
SINGLE_FILE = "."
"""Key of the only shard, if the checkpoint in a folder is one file."""
_SHA256 = re.compile(r"[0-9a-f]{64}$")


class Shard(NamedTuple):
    """One object of a checkpoint.

    Attributes:
        key: relative to the checkpoint's path.
        rank: the rank that wrote it.
        size_bytes: its length.
        sha256: checksum of its bytes, as 64 hex digits.
        etag: the store's ETag when it was written; "" in a folder.
    """

    key: str
    rank: int
    size_bytes: int
    sha256: str
    etag: str = ""


class Manifest(NamedTuple):
    """The contents of a checkpoint.

    Attributes:
        job: name of the job that wrote it; "" outside Muster.
        uid: that job's UID; "" outside Muster.
        attempt: the attempt that wrote it; 0 outside Muster.
        step: its step.
        world_size: number of ranks of the job that wrote it.
        sharded: whether each rank wrote its own shards; otherwise rank 0 wrote all.
        cursor: the position in the training data (`Stream.cursor()`); None if the program gave none.
        skipped: samples that were skipped, as the program gave them.
        shards: its objects, sorted by key.
    """

    job: str
    uid: str
    attempt: int
    step: int
    world_size: int
    sharded: bool
    cursor: str | None
    skipped: tuple[Any, ...]
    shards: tuple[Shard, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of all shards."""
        return sum(each.size_bytes for each in self.shards)


class BadCheckpoint(Exception):
    """A checkpoint cannot be loaded, and the next older one must be used.

    Attributes:
        reason: Checksum, Missing, Size, Manifest, Read or Version.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def new(step: int, sharded: bool, cursor: str | None, skipped: Sequence[Any], shards: Sequence[Shard]) -> Manifest:
    """The manifest of a checkpoint that this process writes; the environment names the job."""
    attempt = place.attempt()
    env = os.environ if attempt else {}  # outside an attempt it belongs to no job
    job, uid = env.get("MUSTER_JOB", ""), env.get("MUSTER_JOB_UID", "")
    return Manifest(job, uid, attempt, step, place.world_size(), sharded, cursor, tuple(skipped), tuple(shards))


def details(manifest: Manifest, data: bytes) -> dict[str, Any]:
    """The fields of a checkpoint's report that describe its manifest: bytes, shards, manifest."""
    return {"bytes": manifest.size_bytes, "shards": len(manifest.shards), "manifest": digest(data)}


def digest(data: bytes) -> str:
    """SHA-256 as hex digits."""
    return hashlib.sha256(data).hexdigest()


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest. The same manifest gives the same bytes."""
    said = {
        "version": VERSION,
        "job": manifest.job,
        "uid": manifest.uid,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "worldSize": manifest.world_size,
        "sharded": manifest.sharded,
        "cursor": manifest.cursor,
        "skipped": list(manifest.skipped),
        "shards": [shard_as_json(each) for each in manifest.shards],
    }
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()


def parse(data: bytes) -> Manifest:
    """Read a manifest. Unknown fields are ignored. Raises BadCheckpoint (Manifest, Version)."""
    if len(data) > BYTES_MAX:
        raise _malformed(f"it has {len(data)} bytes, more than {BYTES_MAX}")
    try:
        said = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise _malformed("it is not a JSON object")
    version = _field(said, "version", int)
    if version > VERSION:
        raise BadCheckpoint(
            "Version",
            f"the checkpoint's manifest has version {version}, and this version of Muster reads at most {VERSION}: "
            "use the Muster that wrote the checkpoint, or a later one",
        )
    if version < 1:
        raise _malformed(f"its version is {version}")
    world_size = _field(said, "worldSize", int)
    cursor = said.get("cursor")
    if cursor is not None and not isinstance(cursor, str):
        raise _malformed("its field cursor is not a string")
    shards = tuple(shard_from_json(each) for each in _field(said, "shards", list))
    if len({each.key for each in shards}) != len(shards):
        raise _malformed("two shards have the same key")
    if world_size < 1 or any(each.rank >= world_size for each in shards):
        raise _malformed("its worldSize does not fit the ranks of its shards")
    return Manifest(
        _field(said, "job", str),
        _field(said, "uid", str),
        _number(said, "attempt", 0),
        _number(said, "step", -records.STEP_MAX),
        world_size,
        _field(said, "sharded", bool),
        cursor,
        tuple(_field(said, "skipped", list)),
        shards,
    )


def shard_as_json(shard: Shard) -> dict[str, Any]:
    """A shard as it is written in manifests and part records."""
    return {
        "key": shard.key, "rank": shard.rank, "bytes": shard.size_bytes, "sha256": shard.sha256, "etag": shard.etag,
    }  # fmt: skip


def shard_from_json(said: Any) -> Shard:
    """The opposite of `shard_as_json`. Raises BadCheckpoint (Manifest)."""
    if not isinstance(said, dict):
        raise _malformed("a shard is not a JSON object")
    key = _field(said, "key", str)
    parts = key.split("/")
    if len(key) > KEY_CHARS_MAX or "\0" in key or (key != SINGLE_FILE and {"", ".", ".."} & {*parts}):
        raise _malformed(f"a shard has the key {key[:80]!r}")
    sha256 = _field(said, "sha256", str)
    if not _SHA256.match(sha256):
        raise _malformed(f"the checksum of shard {key} is not 64 hex digits")
    return Shard(key, _number(said, "rank", 0), _number(said, "bytes", 0), sha256, _field(said, "etag", str))


def in_order(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The shards sorted by key."""
    return tuple(sorted(shards))


def _field(said: dict[str, Any], name: str, kind: type) -> Any:
    value = said.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _malformed(f"its field {name} is missing or not of type {kind.__name__}")
    return value


def _number(said: dict[str, Any], name: str, least: int) -> int:
    value: int = _field(said, name, int)
    if not least <= value <= records.STEP_MAX:
        raise _malformed(f"its field {name} is {str(value)[:40]}")
    return value


def _malformed(why: str) -> BadCheckpoint:
    return BadCheckpoint("Manifest", f"the checkpoint's manifest is damaged: {why}")
