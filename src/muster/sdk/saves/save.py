"""One save: shards, parts, manifest, confirmation, and then retention."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Callable, NamedTuple

from muster.sdk import place, reports
from muster.sdk.data.errors import StoreError, Unavailable
from muster.sdk.errors import CheckpointNotSaved, ControllerUnavailable, StaleAttempt
from muster.sdk.saves import bucket as buckets
from muster.sdk.saves import files, layout, manifest, marks, node_shards, own, parts, retention
from muster.sdk.saves.bucket import Bucket
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.files import no_space
from muster.sdk.saves.manifest import Shard
from muster.sdk.saves.parts import Part
from muster.sdk.saves.process import process
from muster.sdk.saves.retention import Retention
from muster.sdk.saves.targets import BucketTarget, FolderTarget, Target


class Wanted(NamedTuple):
    """What the program asked for; `save_checkpoint` describes the fields."""

    step: int
    deadline_s: float
    sharded: bool
    background: bool
    cursor: str | None
    skipped: tuple[Any, ...]
    retention: Retention


class Save:
    """A save that has begun.

    Args:
        wanted: the arguments of the call.
        folder: the job's folder or URL.

    Attributes:
        path: where the checkpoint will be.
        blocked_s: how long training waited for it.
        upload_s: how long shards, manifest and confirmation took.
    """

    def __init__(self, wanted: Wanted, folder: str) -> None:
        self.wanted = wanted
        self.blocked_s = self.upload_s = 0.0
        self._folder = folder
        again = process().count(wanted.step)
        self._id = parts.save_id(again) if wanted.sharded else ""
        self._name = layout.checkpoint_name(wanted.step, place.attempt(), parts.number_of_run() + again)
        self.path = layout.below(folder, self._name) if layout.is_url(folder) else os.path.join(folder, self._name)
        self._deadline = 0.0
        self._bucket: Bucket | None = None
        self._target: Target | None = None
        self._local = ""
        self._shards: tuple[Shard, ...] = ()

    def write(self, write: Callable[[str], object]) -> None:
        """Let the program write its file or folder on this node.

        In the background, the store and the job's folder are not touched before `finish`: they may be away.
        """
        try:
            if self.wanted.background:
                self._local = files.new_copy()
            else:
                with stored(self.path):
                    self._local = self._begin().local()
            write(self._local)
        except BaseException as error:
            self._put_problem(error)
            self._failed(error)
            full = no_space(error, self._local) if isinstance(error, OSError) else None
            if full is not None:
                raise full from error
            raise

    def _begin(self) -> Target:
        """Choose the checkpoint's name, and write the record that names its owner."""
        state, step = process(), self.wanted.step
        if layout.is_url(self._folder):
            self._bucket = buckets.open_bucket(self._folder, self.wanted.deadline_s)
            if not state.noted_start and place.rank() == 0:
                marks.confirmed_at_start(self._bucket)
                state.noted_start = True
            if not self.wanted.sharded:
                self._name = self._bucket.unused_name(step, place.attempt())
            target: Target = BucketTarget(self._bucket, self._name, step)
        else:
            os.makedirs(self._folder, exist_ok=True)
            if not self.wanted.sharded:
                name = layout.checkpoint_name(step, place.attempt())
                self._name = own.unused_name(self._folder, name)
            target = FolderTarget(self._folder, self._name, step, self.wanted.sharded)
        self._target, self.path = target, target.path
        target.begin()
        return target

    def finish(self, began: float) -> Checkpoint:
        """Store what was written, and wait until the controller confirms it.

        `began` is when the upload began, or the whole save if training waits for it.
        """
        self._deadline = time.monotonic() + self.wanted.deadline_s
        try:
            with stored(self.path):
                target = self._target or self._begin()
                data = self._store(target)
            self.upload_s = time.monotonic() - began
            if data is not None:
                self._confirm(target, data, began)
            self._offer(data is not None)
        except BaseException as error:
            self._failed(error)
            raise
        self._release()
        if data is not None:
            self._retain()
        self._close()
        return Checkpoint(self.path, self.wanted.step)

    def summary(self) -> str:
        """Returns what this save did, after `finish`, as text for the log."""
        what, end = f"checkpoint of step {self.wanted.step}", "is saved"
        if self.wanted.sharded and place.rank():
            what, end = f"its part of the {what}", "is stored"
        took = "the upload" if layout.is_url(self._folder) else "copying it to its folder"
        return f"{what} {end}: training waited {self.blocked_s:.2f} s, {took} took {self.upload_s:.2f} s"

    def _store(self, target: Target) -> bytes | None:
        """Upload; returns the manifest on rank 0 and None on other ranks."""
        wanted, skipped = self.wanted, self.wanted.skipped
        try:
            shards = target.upload(self._local)
        except BaseException as error:
            self._put_problem(error)
            raise
        self._shards = shards
        if wanted.sharded:
            ranks = place.world_size()
            target.put_part(Part(self._id, place.rank(), ranks, shards, skipped))
            if place.rank():
                return None
            found = parts.gather(target.parts, self._id, ranks, self._deadline, self._waiting)
            shards, skipped = parts.shards_of(found), parts.skipped_of(found)
        data = manifest.encode(manifest.new(wanted.step, wanted.sharded, wanted.cursor, skipped, shards))
        if len(data) > manifest.BYTES_MAX:
            raise CheckpointNotSaved(f"{self.path} has {len(shards)} files, too many for one manifest: write fewer")
        target.publish(data)
        return data

    def _waiting(self, message: str) -> None:
        log(f"{self.path}: {message}")

    def _confirm(self, target: Target, data: bytes, began: float) -> None:
        known = manifest.parse(data)
        self.upload_s = time.monotonic() - began
        seconds = {"blockedSeconds": round(self.blocked_s, 3), "uploadSeconds": round(self.upload_s, 3)}
        details = dict(manifest.details(known, data), **seconds)
        try:
            left_s = max(1.0, self._deadline - time.monotonic())
            reports.commit(self.wanted.step, self.path, left_s, details, late=self.wanted.background)
        except StaleAttempt:
            with stored(self.path):
                target.discard()
            raise
        own.note_committed(Checkpoint(self.path, self.wanted.step))
        try:
            target.confirm()
        except StoreError as error:  # the controller's record counts
            log(f"{self.path} is saved, but its record could not be written: {error}")

    def _retain(self) -> None:
        """Remove old checkpoints. If that fails, the new one counts nevertheless."""
        try:
            if self._bucket is not None:
                retention.run(self._bucket, self.wanted.retention, {self._name})
            else:
                own.prune(os.path.dirname(self.path), self.wanted.retention, {self.path})
        except (StoreError, OSError) as error:
            log(f"old checkpoints could not be removed, and the next save tries again: {error}")

    def _offer(self, confirmed: bool) -> None:
        """Give this rank's shards to the node cache, from which a later attempt loads them."""
        if self._bucket is None:
            return
        skip = len(layout.rank_name(place.rank())) + 1
        pairs = [(each, os.path.join(self._local, *each.key[skip:].split("/"))) for each in self._shards]
        if os.path.isfile(self._local):
            pairs = [(each, self._local) for each in self._shards]
        node_shards.offers.offer(pairs, self.path, self.wanted.step, self.path if confirmed else "")

    def _put_problem(self, error: BaseException) -> None:
        """Let rank 0 learn that this rank has failed, so that it need not wait until the deadline."""
        if self._target is None or not self.wanted.sharded or not place.rank():
            return
        with contextlib.suppress(StoreError, OSError):  # rank 0 then waits until the deadline
            self._target.put_part(Part(self._id, place.rank(), place.world_size(), (), (), f"{error}"[:512]))

    def _failed(self, error: BaseException) -> None:
        process().failed.add(self._name)
        self._release()
        if isinstance(error, (CheckpointNotSaved, ControllerUnavailable, OSError)):
            reports.problem(self.wanted.step, self.path, str(error))
        self._close()

    def _release(self) -> None:
        """Remove what is only on this node, or unfinished."""
        if self._target is not None:
            self._target.release(self._local)
        elif self._local:
            files.remove_copy(self._local)

    def _close(self) -> None:
        if self._bucket is not None:
            self._bucket.store.close()


class stored:
    """Turns errors of the store and of the file system into CheckpointNotSaved, whose message names the checkpoint."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (StoreError, OSError)):
            message = f"{self._path} was not saved, and earlier checkpoints still count: {error}"
            raise CheckpointNotSaved(message, temporary=isinstance(error, Unavailable)) from error


def log(message: str) -> None:
    """Print a line for the user to the rank's log."""
    print(f"muster: {message}", file=sys.stderr, flush=True)
