"""Where one checkpoint is written: an object store or a folder. Both keep the same order of steps.

The order is: record, shards, parts (of a sharded save), manifest, confirmation by the controller, record. A crash
between any two steps leaves something that does not look complete, or a complete checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from muster.sdk import place, records
from muster.sdk.data.errors import AlreadyExists, NotFound
from muster.sdk.errors import CheckpointNotSaved
from muster.sdk.saves import durable, files, layout, manifest, own, parallel, parts
from muster.sdk.saves.bucket import Bucket
from muster.sdk.saves.files import LocalFile
from muster.sdk.saves.manifest import Shard
from muster.sdk.saves.parts import Part


class Target:
    """One checkpoint that is being written.

    Attributes:
        name: its name below the job's folder.
        path: its full path or URL.
    """

    name: str
    path: str

    def local(self) -> str:
        """The path where this rank's write() creates its file or folder, unless it makes a copy first."""
        raise NotImplementedError

    def begin(self) -> None:
        """Write the record that names the owner, before anything else. Other ranks write it if rank 0 has not yet."""
        raise NotImplementedError

    def upload(self, local: str) -> tuple[Shard, ...]:
        """Store this rank's shards durably."""
        raise NotImplementedError

    def put_part(self, part: Part) -> None:
        """Store this rank's part record."""
        raise NotImplementedError

    def parts(self) -> dict[int, Part]:
        """The parts that exist now, by rank."""
        raise NotImplementedError

    def publish(self, data: bytes) -> None:
        """Write the manifest, which makes the checkpoint complete."""
        raise NotImplementedError

    def confirm(self) -> None:
        """Note in the record that the controller confirmed the checkpoint."""
        raise NotImplementedError

    def discard(self) -> None:
        """Remove everything: the manifest first."""
        raise NotImplementedError

    def release(self, local: str) -> None:
        """Remove the local copy of this rank."""
        raise NotImplementedError


class BucketTarget(Target):
    """A checkpoint in an object store."""

    def __init__(self, bucket: Bucket, name: str, step: int) -> None:
        self.bucket, self.name, self.path = bucket, name, bucket.path(name)
        self._record = records.new(name, step, place.attempt(), name)
        self._parts: dict[str, tuple[str, Part | None]] = {}

    def local(self) -> str:
        """A path for a copy on this node."""
        return files.new_copy()

    def begin(self) -> None:
        """Write the record."""
        if place.rank() == 0:
            self.bucket.write_record(self._record)
            return
        with contextlib.suppress(AlreadyExists):
            self.bucket.write_record(self._record, create_only=True)

    def upload(self, local: str) -> tuple[Shard, ...]:
        """Store this rank's files, and return their checksums."""
        rank = place.rank()

        def put(file: LocalFile) -> Shard:
            key = layout.rank_name(rank) + (f"/{file.name}" if file.name else "")
            size, sha256 = files.checksum(file.path)
            info = self.bucket.store.put(f"{self.name}/{key}", file.path)
            if info.size_bytes != size:
                raise CheckpointNotSaved(f"{file.path} changed while it was uploaded: write() must finish it first")
            return Shard(key, rank, size, sha256, info.etag)

        return manifest.in_order(parallel.each(put, files.inside(local)))

    def put_part(self, part: Part) -> None:
        """Store this rank's part record."""
        self.bucket.store.put(f"{self.name}/{layout.part_name(part.rank)}", parts.encode(part))

    def parts(self) -> dict[int, Part]:
        """The parts that exist now, by rank."""
        stored = list(self.bucket.store.list(f"{self.name}/{layout.PARTS}"))
        new = [each for each in stored if self._parts.get(each.key, ("", None))[0] != each.etag or not each.etag]
        for info, part in zip(new, parallel.each(lambda info: self._part(info.key), new)):
            self._parts[info.key] = (info.etag, part)
        return {part.rank: part for _, part in self._parts.values() if part is not None}

    def _part(self, key: str) -> Part | None:
        try:
            return parts.parse(self.bucket.store.read(key))
        except NotFound:
            return None

    def publish(self, data: bytes) -> None:
        """Make the checkpoint complete."""
        key = f"{self.name}/{layout.MANIFEST}"
        try:
            self.bucket.store.put(key, data, create_only=True)
        except AlreadyExists:
            if self.bucket.store.read(key) != data:  # the same bytes are ours: an answer of the store was lost
                raise CheckpointNotSaved(
                    f"another process has written {self.path} since: two processes run as rank 0 of attempt "
                    f"{place.attempt()}"
                ) from None

    def confirm(self) -> None:
        """Note the confirmation."""
        self._record = self._record._replace(confirmed=time.time())
        self.bucket.write_record(self._record)

    def discard(self) -> None:
        """Remove everything."""
        self.bucket.remove(self.name)

    def release(self, local: str) -> None:
        """Remove what is only on this node, or unfinished."""
        if local:
            files.remove_copy(local)


class FolderTarget(Target):
    """A checkpoint in a folder that all nodes share, written by all ranks or in the background.

    Shards are written under a temporary name, flushed to disk and renamed, as `save_checkpoint` does without options.
    """

    def __init__(self, folder: str, name: str, step: int, sharded: bool) -> None:
        self.folder, self.name, self.path = folder, name, os.path.join(folder, name)
        self._sharded = sharded
        temporary = layout.unfinished_name(name, "" if sharded else str(os.getpid()))
        self._temporary = os.path.join(folder, temporary)
        self._part_folder = os.path.join(self._temporary, ".parts")
        self._record = records.new(name, step, place.attempt(), temporary)

    def local(self) -> str:
        """A path in the folder itself."""
        if self._sharded:
            os.makedirs(self._temporary, exist_ok=True)
        return self._own()

    def _own(self) -> str:
        return os.path.join(self._temporary, layout.rank_name(place.rank())) if self._sharded else self._temporary

    def begin(self) -> None:
        """Write the record."""
        if place.rank() == 0 or not records.exists(self.folder, self.name):
            own.write_record(self.folder, self._record)

    def upload(self, local: str) -> tuple[Shard, ...]:
        """Store this rank's files, and return their checksums."""
        own = self._own()
        if local != own:
            os.makedirs(os.path.dirname(own), exist_ok=True)
            durable.remove(own)
            try:
                shutil.copytree(local, own) if os.path.isdir(local) else shutil.copyfile(local, own)
            except shutil.Error as error:
                failed = error.args[0] if isinstance(error.args[0], str) else f"{error.args[0][0][2]}"
                raise CheckpointNotSaved(f"write() made what cannot be copied into {self.folder}: {failed}") from error
        durable.flush(own)
        rank = place.rank()
        prefix = layout.rank_name(rank) if self._sharded else ""
        return shards_of(own, rank, prefix)

    def put_part(self, part: Part) -> None:
        """Store this rank's part record."""
        os.makedirs(self._part_folder, exist_ok=True)
        path = os.path.join(self._part_folder, layout.rank_name(part.rank) + ".json")
        with open(path + ".new", "wb") as file:
            file.write(parts.encode(part))
        os.replace(path + ".new", path)

    def parts(self) -> dict[int, Part]:
        """The parts that exist now, by rank."""
        found = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._part_folder):
                if name.endswith(".json"):
                    with open(os.path.join(self._part_folder, name), "rb") as file:
                        part = parts.parse(file.read())
                    if part is not None:
                        found[part.rank] = part
        return found

    def publish(self, data: bytes) -> None:
        """Make the checkpoint complete."""
        durable.remove(self._part_folder)
        durable.flush_one(self._temporary)
        os.rename(self._temporary, self.path)
        durable.flush_one(self.folder)
        with contextlib.suppress(OSError):  # without a manifest it counts nevertheless, but cannot be verified
            records.write_manifest(self.folder, self.name, data)

    def confirm(self) -> None:
        """Note the confirmation."""
        self._record = self._record._replace(confirmed=time.time())
        own.write_record(self.folder, self._record)

    def discard(self) -> None:
        """Remove everything."""
        durable.remove(self.path)
        durable.remove(self._temporary)
        records.remove(self.folder, self._record)

    def release(self, local: str) -> None:
        """Remove what is only on this node, or unfinished."""
        if local and local != self._own():
            files.remove_copy(local)
        if not self._sharded or place.rank() == 0:
            durable.remove(self._temporary)


def shards_of(path: str, rank: int, prefix: str = "") -> tuple[Shard, ...]:
    """The shards of a checkpoint in a folder, with the checksums of its files."""

    def shard(file: LocalFile) -> Shard:
        size, sha256 = files.checksum(file.path)
        key = "/".join(each for each in (prefix, file.name) if each) or manifest.SINGLE_FILE
        return Shard(key, rank, size, sha256)

    return manifest.in_order(parallel.each(shard, files.inside(path, strict=False)))
