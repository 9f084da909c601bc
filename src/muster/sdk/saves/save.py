"""One save: shards, parts, manifest, confirmation, and then retention."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any, NamedTuple

from muster.sdk import checkpoints, place, reports
from muster.sdk.checkpoints import Checkpoint
from muster.sdk.data.errors import StoreError, Unavailable
from muster.sdk.errors import CheckpointNotSaved, ControllerUnavailable, StaleAttempt
from muster.sdk.saves import bucket as buckets
from muster.sdk.saves import layout, manifest, marks, node_shards, parts, retention
from muster.sdk.saves.bucket import Bucket
from muster.sdk.saves.files import no_space
from muster.sdk.saves.manifest import Shard
from muster.sdk.saves.parts import Part
from muster.sdk.saves.process import process
from muster.sdk.saves.retention import Retention
from muster.sdk.saves.targets import BucketTarget, FolderTarget, Target

HEARTBEAT_S = 15.0


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
        late: whether training continues while it runs.

    Attributes:
        path: where the checkpoint will be.
        blocked_s: how long training waited for it.
        upload_s: how long shards, manifest and confirmation took.
    """

    def __init__(self, wanted: Wanted, folder: str) -> None:
        self.wanted = wanted
        self.blocked_s = self.upload_s = 0.0
        self._deadline = 0.0
        self._bucket: Bucket | None = None
        again = process().count(wanted.step)
        self._id = parts.save_id(again) if wanted.sharded else ""
        self._local = ""
        self._shards: tuple[Shard, ...] = ()
        self._target = self._new_target(folder, parts.number_of_run() + again)
        self.path = self._target.path
        process().in_flight.add(self._target.name)

    def _new_target(self, folder: str, again: int) -> Target:
        step, sharded = self.wanted.step, self.wanted.sharded
        name = layout.checkpoint_name(step, place.attempt(), again)
        if not layout.is_url(folder):
            os.makedirs(folder, exist_ok=True)
            if not sharded:
                name = checkpoints.unused_name(folder, layout.checkpoint_name(step, place.attempt()))
            return FolderTarget(folder, name, step, sharded)
        with stored(folder):
            self._bucket = buckets.open_bucket(folder, self.wanted.deadline_s)
            if not sharded:
                name = self._bucket.unused_name(step, place.attempt())
        return BucketTarget(self._bucket, name, step)

    def write(self, write: Any) -> None:
        """Let the program write its file or folder on this node."""
        try:
            self._local = self._target.local(self.wanted.background)
            if place.rank() == 0:
                with stored(self.path):
                    self._begin()
            write(self._local)
        except BaseException as error:
            self._put_problem(error)
            self._failed(error)
            full = no_space(error, self._local) if isinstance(error, OSError) else None
            if full is not None:
                raise full from error
            raise

    def _begin(self) -> None:
        state = process()
        if self._bucket is not None and not state.noted_start:
            marks.confirmed_at_start(self._bucket)
            state.noted_start = True
        self._target.begin()

    def finish(self, began: float) -> Checkpoint:
        """Store what was written, and wait until the controller confirms it.

        `began` is when the upload began, or the whole save if training waits for it.
        """
        self._deadline = time.monotonic() + self.wanted.deadline_s
        try:
            with stored(self.path):
                data = self._store()
            if data is not None:
                self._confirm(data, began)
            self._offer(data is not None)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._target.release(self._local)
            process().in_flight.discard(self._target.name)
        if data is not None:
            self._retain()
        self._close()
        return Checkpoint(self.path, self.wanted.step)

    def _store(self) -> bytes | None:
        """Upload; returns the manifest on rank 0 and None on other ranks."""
        wanted = self.wanted
        try:
            shards = self._target.upload(self._local)
        except BaseException as error:
            self._put_problem(error)
            raise
        self._shards = shards
        if wanted.sharded:
            self._target.put_part(Part(self._id, place.rank(), place.world_size(), shards))
            if place.rank():
                return None
            ranks = place.world_size()
            shards = parts.gather(self._target.parts, self._id, ranks, self._deadline, self._waiting)
        data = manifest.encode(manifest.new(wanted.step, wanted.sharded, wanted.cursor, wanted.skipped, shards))
        self._target.publish(data)
        return data

    def _waiting(self, message: str) -> None:
        log(f"{self.path}: {message}")

    def _confirm(self, data: bytes, began: float) -> None:
        known = manifest.parse(data)
        self.upload_s = time.monotonic() - began
        seconds = {"blockedSeconds": round(self.blocked_s, 3), "uploadSeconds": round(self.upload_s, 3)}
        details = dict(manifest.details(known, data), **seconds)
        try:
            left_s = max(1.0, self._deadline - time.monotonic())
            reports.commit(self.wanted.step, self.path, left_s, details, late=self.wanted.background)
        except StaleAttempt:
            with stored(self.path):
                self._target.discard()
            raise
        checkpoints.note_committed(Checkpoint(self.path, self.wanted.step))
        try:
            self._target.confirm()
        except StoreError as error:  # the controller's record counts
            log(f"{self.path} is saved, but its record could not be written: {error}")

    def _retain(self) -> None:
        """Remove old checkpoints. If that fails, the new one counts nevertheless."""
        try:
            if self._bucket is not None:
                retention.run(self._bucket, self.wanted.retention, {self._target.name})
            else:
                checkpoints.prune(os.path.dirname(self.path), self.wanted.retention, {self.path})
        except (StoreError, OSError) as error:
            log(f"old checkpoints could not be removed, and the next save tries again: {error}")

    def _offer(self, confirmed: bool) -> None:
        """Give this rank's shards to the node cache, from which a later attempt loads them."""
        if self._bucket is None:
            return
        skip = len(layout.rank_name(place.rank())) + 1
        files = [(each, os.path.join(self._local, *each.key[skip:].split("/"))) for each in self._shards]
        if len(files) == 1 and os.path.isfile(self._local):
            files = [(self._shards[0], self._local)]
        node_shards.offers.offer(files, self.path, self.wanted.step, self.path if confirmed else "")

    def _put_problem(self, error: BaseException) -> None:
        """Let rank 0 learn that this rank has failed, so that it need not wait until the deadline."""
        if not self.wanted.sharded or not place.rank():
            return
        with contextlib.suppress(StoreError, OSError):  # rank 0 then waits until the deadline
            self._target.put_part(Part(self._id, place.rank(), place.world_size(), (), f"{error}"[:512]))

    def _failed(self, error: BaseException) -> None:
        state = process()
        state.failed.add(self._target.name)
        state.in_flight.discard(self._target.name)
        if self._local:
            self._target.release(self._local)
        if isinstance(error, (CheckpointNotSaved, ControllerUnavailable, OSError)):
            reports.problem(self.wanted.step, self.path, str(error))
        self._close()

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


class Heartbeat:
    """Reports the step from time to time while a save blocks training, so that the job does not count as stalled."""

    def __init__(self, step: int) -> None:
        self._step, self._ended = step, threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="muster-heartbeat", daemon=True).start()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        with contextlib.suppress(StaleAttempt):  # the save itself learns it
            while not self._ended.wait(HEARTBEAT_S):
                reports.report(step=self._step)


def log(message: str) -> None:
    """Print a line for the user to the rank's log."""
    print(f"muster: {message}", file=sys.stderr, flush=True)
