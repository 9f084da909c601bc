"""Loads the checkpoint from which to start: verifies it, agrees with other ranks, and falls back to an older one."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from typing import Callable, TypeVar

from muster.sdk import place
from muster.sdk.data.errors import Forbidden, NotFound, StoreError
from muster.sdk.data.store import Store
from muster.sdk.data.wire import CacheUnavailable
from muster.sdk.errors import NoGoodCheckpoint
from muster.sdk.saves import agreement, bucket, files, folders, layout, marks, node_shards, own
from muster.sdk.saves.agreement import Chosen, Outcome
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.checkpoint_files import CheckpointFiles, Source
from muster.sdk.saves.manifest import BadCheckpoint, Manifest, Shard
from muster.sdk.saves.once import Once
from muster.sdk.saves.process import process
from muster.sdk.saves.save import log

Result = TypeVar("Result")


class FolderSource(Source):
    """Files in a folder, verified where they are."""

    by_rank = False

    def __init__(self, path: str, once: Once) -> None:
        self.root, self._once, self.bytes_from = path, once, {}

    def fetch(self, shard: Shard) -> None:
        """Verify the shard's file."""
        self._once.run(f"{self.root}/{shard.key}", shard.size_bytes, lambda: folders.verify(self.root, shard))


class BucketSource(Source):
    """Objects in a store, copied to this node: from the node cache of this node or a peer if it has them."""

    by_rank = True

    def __init__(self, store: Store, root: str, once: Once, chosen: Chosen, attempt: int) -> None:
        self.root, self._store, self._once, self._chosen = root, store, once, chosen
        self._attempt = attempt
        self.bytes_from = {}
        self._node = node_shards.connect()
        self._lock = threading.Lock()
        self._offered: list[tuple[Shard, str]] = []

    def fetch(self, shard: Shard) -> None:
        """Copy the shard to this node, and verify it on the way."""
        self._once.run(shard.key, shard.size_bytes, lambda: self._copy(shard))

    def _copy(self, shard: Shard) -> None:
        path = os.path.join(self.root, *shard.key.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if self._from_node(shard, path):
            return
        try:
            with open(path, "wb") as file:
                sink = bucket.Digesting(file)
                self._store.read_into(shard.key, sink)  # type: ignore[arg-type]
        except NotFound:
            raise BadCheckpoint("Missing", f"shard {shard.key} is missing in {self._store.url}") from None
        except OSError as error:
            if error.errno in files.FULL:
                where = os.path.dirname(self.root)
                raise OSError(
                    error.errno, f"the checkpoint does not fit on this node: free space in {where}"
                ) from error
            raise
        except Forbidden as error:
            self._only_this(error)
            raise BadCheckpoint("Read", f"shard {shard.key} cannot be read: {error}") from error
        self._count("bucket", shard.size_bytes)
        sink.compare(shard)
        with self._lock:
            self._offered.append((shard, path))

    def _from_node(self, shard: Shard, path: str) -> bool:
        """Copy the shard from the node cache; returns False if that does not succeed, whatever the reason."""
        with self._lock:
            if self._node is None:
                return False
            try:
                chosen = self._chosen
                kept = self._node.kept(shard, chosen.path, chosen.step, self._attempt, node_shards.FETCH_S)
            except CacheUnavailable as error:
                if not error.code:  # it did not answer, and would not answer for the next shard
                    self._node.close()
                    self._node = None
                return False
        try:
            with open(path, "wb") as file:
                sink = bucket.Digesting(file)
                for piece in kept.read(shard.size_bytes):
                    sink.write(piece)
            sink.compare(shard)
        except (OSError, BadCheckpoint):
            return False
        finally:
            os.close(kept.descriptor)
        self._count(kept.source, shard.size_bytes)
        return True

    def _count(self, source: str, size_bytes: int) -> None:
        with self._lock:
            self.bytes_from[source] = self.bytes_from.get(source, 0) + size_bytes

    def _only_this(self, error: Forbidden) -> None:
        """Raise the error if the credentials do not fit any more: then the checkpoint is not bad."""
        try:
            self._store.head(layout.MANIFEST)
        except StoreError:
            raise error from None

    def close(self) -> None:
        """Give the node cache what came from the bucket, and release connections."""
        if self._offered:
            node_shards.offers.offer(self._offered, self._chosen.path, self._chosen.step)
        if self._node is not None:
            self._node.close()
        self._store.close()


def load(
    read: Callable[[CheckpointFiles], Result], agree: Callable[[bool], bool] | None, deadline_s: float
) -> tuple[Result, Checkpoint] | None:
    """See `muster.load_checkpoint`."""
    if place.attempt():
        return _with_muster(read, deadline_s)
    if place.world_size() > 1 and agree is None:
        raise ValueError(
            "load_checkpoint without Muster and with several ranks needs agree=: a function that is called with "
            "whether this rank succeeded, and returns whether all ranks did (for example an all-reduce of the minimum)"
        )
    candidates = own.newest_first()
    for checkpoint in candidates:
        result, outcome = _try(read, Chosen(checkpoint.path, checkpoint.step), deadline_s, 0)
        if agreement.by_program(outcome, agree):
            return _loaded(result, checkpoint)
        log(f"the checkpoint {checkpoint.path} is not used: {outcome.message or 'another rank could not load it'}")
    if candidates:
        raise NoGoodCheckpoint(f"none of {len(candidates)} checkpoints in {own.checkpoint_dir()} can be loaded")
    return None


def _with_muster(read: Callable[[CheckpointFiles], Result], deadline_s: float) -> tuple[Result, Checkpoint] | None:
    env = os.environ
    path = env.get("MUSTER_CHECKPOINT", "")
    if not path:
        return None
    chosen = Chosen(path, int(env.get("MUSTER_CHECKPOINT_STEP") or 0), env.get("MUSTER_CHECKPOINT_MANIFEST", ""))
    process().loads += 1
    agreement.remove_older()
    call, turn = process().loads, 0
    while True:
        result, outcome = _try(read, chosen, deadline_s, call)
        if outcome.reason:
            log(f"the checkpoint {chosen.path} cannot be loaded: {outcome.message}")
        verdict = agreement.with_controller(outcome, call, turn, deadline_s)
        if place.local_rank() == 0:
            _Scratch(chosen.path, call).remove()
        if verdict.kind == "go":
            return _loaded(result, Checkpoint(chosen.path, chosen.step))
        if verdict.kind == "fail":
            raise NoGoodCheckpoint(
                f"this node cannot load the checkpoint {chosen.path}, which other nodes or a later try may read: "
                f"{outcome.message}"
            )
        if place.rank() == 0:
            marks.bad(chosen.path, outcome.reason or "another rank could not load it")
        if verdict.older is None:
            raise NoGoodCheckpoint(f"no checkpoint is left that can be loaded; the last one was {chosen.path}")
        log(f"all ranks load an older checkpoint, of step {verdict.older.step}: {verdict.older.path}")
        chosen, turn = verdict.older, turn + 1


def _loaded(result: Result | None, checkpoint: Checkpoint) -> tuple[Result, Checkpoint]:
    process().began = checkpoint.path
    own.note_committed(checkpoint)
    return result, checkpoint  # type: ignore[return-value]


def _try(
    read: Callable[[CheckpointFiles], Result], chosen: Chosen, deadline_s: float, call: int
) -> tuple[Result | None, Outcome]:
    """Load a checkpoint on this rank. An error of the store that says nothing about the checkpoint is raised."""
    began = time.monotonic()
    source: Source | None = None
    manifest: Manifest | None = None
    result: Result | None = None
    with _Scratch(chosen.path, call) as scratch:
        try:
            try:
                once = Once(os.path.join(scratch, "done"), deadline_s)
                manifest, source = _open(chosen, os.path.join(scratch, "shards"), once, deadline_s)
                result = read(CheckpointFiles(chosen.step, manifest, source))
                outcome = Outcome(chosen.path)
            except BadCheckpoint as error:
                outcome = Outcome(chosen.path, error.reason, str(error))
            except Exception as error:
                if manifest is not None or source is None:
                    raise  # what was verified is not at fault
                outcome = Outcome(chosen.path, "Read", f"{type(error).__name__}: {error}")
        finally:
            if source is not None:
                source.close()
    counts = source.bytes_from if source is not None else {}
    return result, outcome._replace(seconds=time.monotonic() - began, bytes_from=counts)


def _open(chosen: Chosen, root: str, once: Once, deadline_s: float) -> tuple[Manifest | None, Source]:
    if not layout.is_url(chosen.path):
        path = layout.plain(chosen.path)
        return folders.read_manifest(path, chosen.manifest), FolderSource(path, once)
    store = bucket.open_bucket(chosen.path, deadline_s).store
    try:
        manifest = bucket.read_manifest(store, "", chosen.manifest)
        return manifest, BucketSource(store, root, once, chosen, manifest.attempt)
    except BaseException:
        store.close()
        raise


class _Scratch:
    """A folder of this node for one checkpoint; under Muster the ranks of the node share it until they have agreed."""

    def __init__(self, path: str, call: int) -> None:
        shared = agreement.restore_folder()
        name = layout.split(path)[1] or "checkpoint"
        self._shared = os.path.join(shared, f"load-{call}-{name}") if shared else ""
        self._own = ""

    def __enter__(self) -> str:
        if self._shared:
            return self._shared
        self._own = tempfile.mkdtemp(prefix="muster-load-", dir=files.save_folder())
        return self._own

    def __exit__(self, *exc: object) -> None:
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def remove(self) -> None:
        """Remove the shared folder: all ranks of this node have loaded the checkpoint, or have failed to."""
        if self._shared:
            shutil.rmtree(self._shared, ignore_errors=True)
