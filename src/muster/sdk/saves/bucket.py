"""The checkpoints of one job in an object store: records, manifests, and their removal."""

from __future__ import annotations

from typing import NamedTuple

from muster.sdk import records, reports
from muster.sdk.data.access import access_from
from muster.sdk.data.errors import NotFound
from muster.sdk.data.store import ObjectInfo, Store
from muster.sdk.saves import layout, manifest, parallel
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.manifest import BadCheckpoint, Manifest
from muster.sdk.saves.process import process

_RECORD_BYTES_MAX = 64 * 1024


class Complete(NamedTuple):
    """A checkpoint that has a manifest: its name and where it comes in the order of checkpoints."""

    order: tuple[int, int, int]
    name: str


class Bucket:
    """The job's folder in an object store.

    Args:
        store: the store, whose keys are relative to `url`.
        url: URL of the job's folder, as the program sees it.
    """

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url

    def path(self, name: str) -> str:
        """The URL of a checkpoint."""
        return layout.below(self.url, name)

    def unused_name(self, step: int, attempt: int) -> str:
        """A checkpoint's name, with a number appended if the same step was saved before."""
        base = layout.checkpoint_name(step, attempt)
        keys = [each.key.partition("/")[0] for each in self.store.list(base)]
        keys += [each.name for each in self.read_records() if each.name.startswith(base)]
        used = {order[2] for order in map(layout.order_of, keys) if order and order[:2] == (step, attempt)}
        return layout.checkpoint_name(step, attempt, max(used) + 1 if used else 0)

    def read_records(self) -> list[records.Record]:
        """All records, oldest first. Objects that are not records are left alone."""
        found = [each for each in self.store.list(records.FOLDER + "/") if each.size_bytes <= _RECORD_BYTES_MAX]
        known = process().records
        new = [each for each in found if not each.etag or known.get(each.key, ("", None))[0] != each.etag]
        for info, record in zip(new, parallel.each(lambda info: self._record(info.key), new)):
            known[info.key] = (info.etag, record)
        for key in {*known} - {each.key for each in found}:
            del known[key]
        read = [known[each.key][1] for each in found]
        return sorted((each for each in read if each is not None), key=lambda each: (each.written, each.step))

    def record(self, name: str) -> records.Record | None:
        """A checkpoint's record; None without one."""
        return self._record(layout.record_key(name))

    def _record(self, key: str) -> records.Record | None:
        try:
            return records.parse(self.store.read(key))
        except NotFound:
            return None

    def write_record(self, record: records.Record, create_only: bool = False) -> None:
        """Write or replace a checkpoint's record. Raises AlreadyExists if `create_only` and there is one."""
        self.store.put(layout.record_key(record.name), records.encode(record), create_only)

    def complete(self) -> list[Complete]:
        """The checkpoints that have a manifest, newest first."""
        found = set()
        for each in self.store.list():
            name, _, rest = each.key.partition("/")
            order = layout.order_of(name)
            if order and rest == layout.MANIFEST:
                found.add(Complete(order, name))
        return sorted(found, reverse=True)

    def check(self, name: str, full: bool = False) -> None:
        """Compare the sizes and ETags of a checkpoint's objects with its manifest; with `full`, also their bytes.

        Raises:
            BadCheckpoint: an object is missing or differs.
            StoreError: the store cannot be asked.
        """
        known = read_manifest(self.store, name + "/")
        stored = {each.key: each for each in self.store.list(name + "/")}
        for shard in known.shards:
            compare(shard, stored.get(f"{name}/{shard.key}"))
        if full:
            parallel.each(lambda shard: verify_bytes(self.store, name + "/", shard), known.shards)

    def remove(self, name: str) -> None:
        """Remove a checkpoint: the manifest first, then parts, shards, and at last its record.

        If this stops half-way, what is left does not look complete, and the record lets a later call finish it.
        """
        self.store.delete(f"{name}/{layout.MANIFEST}")
        keys = [each.key for each in self.store.list(name + "/")]
        parts = [each for each in keys if each.startswith(f"{name}/{layout.PARTS}")]
        parallel.each(self.store.delete, parts)
        parallel.each(self.store.delete, [each for each in keys if each not in {*parts}])
        self.store.delete(layout.record_key(name))


def open_bucket(url: str, deadline_s: float) -> Bucket:
    """The job's folder at a URL, with the endpoint and credentials of MUSTER_CHECKPOINT_*. Raises StoreError."""
    from muster.sdk.data.stores import open_store

    return Bucket(open_store(url, access_from("MUSTER_CHECKPOINT"), deadline_s), url)


def complete_at(url: str) -> list[Checkpoint]:
    """The checkpoints below a URL that have a manifest, newest first. Raises StoreError."""
    bucket = open_bucket(url, reports.DEFAULT_DEADLINE_S)
    try:
        return [Checkpoint(bucket.path(each.name), each.order[0]) for each in bucket.complete()]
    finally:
        bucket.store.close()


def read_manifest(store: Store, prefix: str = "", sha256: str = "") -> Manifest:
    """Read and check the manifest below a prefix.

    Args:
        store: where it is.
        prefix: the checkpoint, with a slash at its end.
        sha256: the digest that the controller recorded; "" if it recorded none.

    Raises:
        BadCheckpoint: it is missing, damaged, of a later version, or not the one that the controller confirmed.
        StoreError: the store cannot be asked.
    """
    key = prefix + layout.MANIFEST
    try:
        info = store.head(key)
        if info.size_bytes > manifest.BYTES_MAX:
            raise BadCheckpoint("Manifest", f"the manifest {key} in {store.url} is too large: {info.size_bytes} bytes")
        data = store.read(key)
    except NotFound:
        raise BadCheckpoint("Missing", f"there is no {key} in {store.url}") from None
    if sha256 and manifest.digest(data) != sha256:
        raise BadCheckpoint("Manifest", f"{key} in {store.url} is not the manifest that the controller confirmed")
    return manifest.parse(data)


def compare(shard: manifest.Shard, stored: ObjectInfo | None) -> None:
    """Raise BadCheckpoint unless the stored object has the shard's size and ETag."""
    if stored is None:
        raise BadCheckpoint("Missing", f"shard {shard.key} is missing")
    if stored.size_bytes != shard.size_bytes:
        raise BadCheckpoint("Size", f"shard {shard.key} has {stored.size_bytes} bytes instead of {shard.size_bytes}")
    if shard.etag and stored.etag and stored.etag != shard.etag:
        raise BadCheckpoint("Checksum", f"shard {shard.key} changed after it was saved: its ETag differs")


def verify_bytes(store: Store, prefix: str, shard: manifest.Shard) -> None:
    """Read a shard and compare its checksum. Raises BadCheckpoint, StoreError."""
    sink = Digesting(None)
    try:
        store.read_into(prefix + shard.key, sink)  # type: ignore[arg-type]
    except NotFound:
        raise BadCheckpoint("Missing", f"shard {shard.key} is missing") from None
    sink.compare(shard)


class Digesting:
    """A writable file that also computes the size and SHA-256 of what is written.

    Args:
        file: where the bytes go; None to drop them.
    """

    def __init__(self, file: object) -> None:
        import hashlib

        self._file, self._sha256, self._size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write the bytes."""
        if self._file is not None:
            self._file.write(data)  # type: ignore[attr-defined]
        self._sha256.update(data)
        self._size += len(data)
        return len(data)

    def compare(self, shard: manifest.Shard) -> None:
        """Raise BadCheckpoint unless the bytes are those of the shard."""
        if self._size != shard.size_bytes:
            raise BadCheckpoint("Size", f"shard {shard.key} has {self._size} bytes instead of {shard.size_bytes}")
        if self._sha256.hexdigest() != shard.sha256:
            raise BadCheckpoint("Checksum", f"shard {shard.key} does not have the checksum in the manifest")
