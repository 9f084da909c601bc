"""Where the index of a data set is stored: beside the data, else with the checkpoints, else in memory."""

from __future__ import annotations

import logging
import os
import threading
from typing import BinaryIO, Iterator

from muster.sdk.data.access import access_from
from muster.sdk.data.broken import BadCursor, BrokenShard
from muster.sdk.data.errors import AlreadyExists, Forbidden, NoCreateOnly, NotFound
from muster.sdk.data.formats.base import Format
from muster.sdk.data.index import FOLDER, Index
from muster.sdk.data.indexing import Builder, load
from muster.sdk.data.store import ObjectInfo, Store
from muster.sdk.data.stores import open_store

_log = logging.getLogger(__name__)


def open_index(
    data: Store, place: Store | None, format: str | Format, rank: int, world_size: int, skip: bool, digest: str
) -> tuple[Index, Store]:
    """Read the index of a data set, and return it with the store that holds it. Build it first if there is none.

    Args:
        data: the data set.
        place: where the index is stored. None: beside the data; if that is read-only, in MUSTER_CHECKPOINT_DIR; without
            this variable each process keeps an index of its own in memory.
        format: of the shards, or "auto".
        rank: of this process, to share the work.
        world_size: number of processes.
        skip: leave broken shards out.
        digest: of the index that the cursor needs; "" without a cursor.

    Raises:
        BadCursor: the data set has changed since the cursor was saved.
        BrokenShard: a shard cannot be indexed, and `skip` is False.
        StoreError: a store failed.
    """
    index, stored = _find(data, place, format, rank, world_size, skip)
    if digest and index.digest != digest:
        raise BadCursor(
            f"the cursor was saved with index {digest[:12]}, and the index in {stored.url} is {index.digest[:12]}: "
            "shards were added, removed or changed. Restore them and the index, or start without a cursor"
        )
    if index.broken and not skip:
        key, reason = next(iter(index.broken.items()))
        message = f"{reason} ({len(index.broken)} broken shards in the index)"
        raise BrokenShard(message, data.url, key).with_fix()
    return index, stored


def _find(
    data: Store, place: Store | None, format: str | Format, rank: int, world_size: int, skip: bool
) -> tuple[Index, Store]:
    places = [place] if place else [data, *_checkpoints()]
    for each in places:
        stored = load(each)
        if stored:
            return stored, each
    for each in places:
        if _writable(each):
            return Builder(data, each, format, rank, world_size, skip).build(), each
    if place:
        raise Forbidden(f"the index cannot be stored in {place.url}: no permission to write", place.url, FOLDER)
    _log.warning("%s is read-only, and MUSTER_CHECKPOINT_DIR is not set: the index is kept in memory", data.url)
    memory = MemoryStore()
    return Builder(data, memory, format, 0, 1, skip).build(), memory


def _checkpoints() -> list[Store]:
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    return [open_store(folder, access_from("MUSTER_CHECKPOINT"))] if folder else []


def _writable(place: Store) -> bool:
    try:
        place.put(FOLDER + "started", b"", create_only=True)
    except AlreadyExists:
        return True
    except (Forbidden, NoCreateOnly, PermissionError):
        return False
    return True


class MemoryStore(Store):
    """Objects in the memory of this process."""

    url = "the memory of this process"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        """Return the object's size. Raises NotFound."""
        return ObjectInfo(key, len(self._object(key)), "")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects with this prefix, sorted."""
        for key in sorted(self._objects):
            if key.startswith(prefix):
                yield self.head(key)

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """Read a range of bytes. Raises NotFound."""
        data = self._object(key)
        return data[start:] if length is None else data[start : start + length]

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        """Write a range of bytes to a file. Raises NotFound."""
        return file.write(self.read(key, start, length))

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        """Keep the bytes, or those of the local file at a path. Raises AlreadyExists if `create_only`."""
        if isinstance(data, str):
            with open(data, "rb") as file:
                data = file.read()
        with self._lock:
            if create_only and key in self._objects:
                raise AlreadyExists(f"{key} exists", self.url, key)
            self._objects[key] = data
        return self.head(key)

    def delete(self, key: str) -> None:
        """Forget the object."""
        with self._lock:
            self._objects.pop(key, None)

    def _object(self, key: str) -> bytes:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(f"{key} does not exist", self.url, key) from None
