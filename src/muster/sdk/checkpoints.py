"""Writes and finds checkpoints. A crash while one is written does not damage earlier ones.

A checkpoint is written under a temporary name, flushed to disk and renamed. It counts when the controller has confirmed
it. Names contain the attempt, so a process of an older attempt cannot overwrite files of the current one. A record
beside the checkpoint (`muster.sdk.records`) names the job that wrote it. A job removes only its own checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple, Sequence, TypeVar

from muster.sdk import place, records, reports
from muster.sdk.errors import StaleAttempt
from muster.sdk.saves.durable import flush, flush_one
from muster.sdk.saves.durable import remove as _remove
from muster.sdk.saves.layout import STORES, is_url, order_of, plain
from muster.sdk.saves.process import process

if TYPE_CHECKING:
    from muster.sdk.saves.checkpoint_files import CheckpointFiles
    from muster.sdk.saves.retention import Retention
    from muster.sdk.saves.saving import Saving

Result = TypeVar("Result")


class Checkpoint(NamedTuple):
    """A finished checkpoint: the file, folder or URL, and its step."""

    path: str
    step: int


_committed: Checkpoint | None = None


def checkpoint_dir() -> str:
    """The folder or URL for this job's checkpoints; RuntimeError if it is not set.

    Under Muster it is the job's own folder below `checkpoint.path`.
    """
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    if not folder:
        raise RuntimeError(
            "no checkpoint folder: `muster run --checkpoint DIR`, or MUSTER_CHECKPOINT_DIR without Muster"
        )
    return plain(folder)


def last_checkpoint() -> Checkpoint | None:
    """The checkpoint from which to start, or None. Outside Muster it is the newest one in checkpoint_dir()."""
    if _committed is not None:
        return _committed
    if place.attempt():
        path = os.environ.get("MUSTER_CHECKPOINT", "")
        return Checkpoint(path, int(os.environ.get("MUSTER_CHECKPOINT_STEP") or 0)) if path else None
    return next(iter(newest_first()), None)


def newest_first() -> list[Checkpoint]:
    """The finished checkpoints in checkpoint_dir(), newest first: what a program without Muster starts from."""
    if not os.environ.get("MUSTER_CHECKPOINT_DIR"):
        return []
    folder = checkpoint_dir()
    if is_url(folder):
        if folder.partition("://")[0] not in STORES:
            return []
        from muster.sdk.saves.bucket import complete_at

        return complete_at(folder)
    return [Checkpoint(path, order[0]) for order, path in sorted(_finished(folder), reverse=True)]


def save_checkpoint(
    step: int,
    write: Callable[[str], object],
    keep: int = 2,
    deadline_s: float = reports.DEFAULT_DEADLINE_S,
    *,
    sharded: bool = False,
    background: bool = False,
    cursor: str | None = None,
    skipped: Sequence[Any] = (),
    keep_every: int = 0,
    verify: str = "size",
    unfinished_max: int = 1,
) -> Checkpoint | Saving | None:
    """Write a checkpoint, wait until the controller confirms it, then remove old ones.

    Only rank 0 saves, and others get None. With `sharded`, all ranks must call it, and each saves its own shards. Rank
    0 returns when the controller has confirmed the checkpoint. Other ranks return when their shards are stored.

    If the job's folder is a URL such as s3://bucket/path, `write` makes a file or folder on this node, and Muster
    uploads it. The variable MUSTER_SAVE_DIR names the folder for it.

    Only checkpoints that this job wrote are removed, never those of another job or of another program.

    Args:
        step: the step of the checkpoint.
        write: called with a path that does not exist yet. It creates a file or a folder there.
        keep: number of confirmed checkpoints to keep. The newest one, and the one from which this attempt began, always
            stay. Older ones are removed after the sizes and ETags of so many newer ones were checked.
        deadline_s: how long the save may take, without `write` itself.
        sharded: whether every rank saves its own shards.
        background: whether to return a `Saving` as soon as `write` has returned. The rest happens in a thread, and the
            program may change its tensors.
        cursor: the position in the training data (`Stream.cursor()`), stored with the checkpoint.
        skipped: samples that this rank skipped (`Stream.skipped`), stored with the checkpoint. If the save is sharded,
            those of all ranks are.
        keep_every: the first checkpoint at or after each multiple of so many steps stays for ever; 0 for none.
        verify: "size" compares sizes and ETags before older checkpoints are removed; "full" also reads all bytes.
        unfinished_max: number of background saves that may be unfinished. A further one waits.

    Raises:
        StaleAttempt: the job has been restarted without this process. The new files are removed.
        ControllerUnavailable: not confirmed within `deadline_s`. The files stay, and the previous checkpoint still
            counts.
        CheckpointNotSaved: the object store, the disk or another rank failed. The previous checkpoint still counts.
        ValueError: an argument is not valid.
    """
    if verify not in ("size", "full"):
        raise ValueError(f'save_checkpoint(verify=...) must be "size" or "full", not {verify!r}')
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError("save_checkpoint(cursor=...) must be a string, such as Stream.cursor() gives")
    try:
        json.dumps(list(skipped), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"save_checkpoint(skipped=...) must be values that JSON can represent: {error}") from None
    if place.rank() != 0 and not sharded:
        return None
    step = int(step)
    reports.report(step=step)  # prevents a stall: a large checkpoint takes long to write
    folder = checkpoint_dir()
    from muster.sdk.saves.retention import Retention

    rules = Retention(keep, keep_every, verify == "full")
    if sharded or background or is_url(folder):
        from muster.sdk.saves import background as saver
        from muster.sdk.saves.save import Wanted

        wanted = Wanted(step, deadline_s, sharded, background, cursor, tuple(skipped), rules)
        return saver.save(wanted, folder, write, unfinished_max)
    return _save_in_folder(folder, step, write, deadline_s, rules, cursor, tuple(skipped))


def load_checkpoint(
    read: Callable[[CheckpointFiles], Result],
    *,
    agree: Callable[[bool], bool] | None = None,
    deadline_s: float = reports.DEFAULT_DEADLINE_S,
) -> tuple[Result, Checkpoint] | None:
    """Load the checkpoint from which to start, and verify it. All ranks must call it.

    Each rank verifies the files that it loads. If one rank finds a damaged or missing file, all ranks load the next
    older checkpoint, and the controller puts the bad one in quarantine. The call returns when all ranks have loaded the
    same checkpoint.

    Args:
        read: called with a `CheckpointFiles`. Its `path` is a file or folder on this node, as `write` of
            save_checkpoint made it. May be called again for an older checkpoint.
        agree: without Muster and with several ranks: called with whether this rank succeeded; returns whether all did.
        deadline_s: how long to wait for the controller, for a request to the object store, and for other ranks of this
            node. While other nodes load the checkpoint, the call waits.

    Returns:
        The result of `read` and the checkpoint; None if the job starts without one.

    Raises:
        NoGoodCheckpoint: there are checkpoints, but none of them can be loaded.
        StaleAttempt: the job has been restarted without this process.
        ControllerUnavailable: the controller did not answer within `deadline_s`.
        TimeoutError: another rank of this node did not load the checkpoint within `deadline_s`.
        muster.sdk.data.StoreError: the object store cannot be used now. The checkpoint does not count as bad.
        ValueError: several ranks run without Muster, and `agree` is missing.
    """
    from muster.sdk.saves.restore import load

    return load(read, agree, deadline_s)


def note_committed(checkpoint: Checkpoint) -> None:
    """Make this the process's last checkpoint."""
    global _committed
    _committed = checkpoint


def _save_in_folder(
    folder: str,
    step: int,
    write: Callable[[str], object],
    deadline_s: float,
    rules: Retention,
    cursor: str | None,
    skipped: tuple[Any, ...],
) -> Checkpoint:
    """Save a checkpoint that rank 0 writes into the folder itself."""
    os.makedirs(folder, exist_ok=True)
    name = unused_name(folder, f"step-{step:08d}-attempt-{place.attempt()}")
    path, temporary = os.path.join(folder, name), os.path.join(folder, f".writing-{name}-{os.getpid()}")
    record = records.new(name, step, place.attempt(), os.path.basename(temporary))
    _remove(temporary)
    write_record(folder, record)
    try:
        write(temporary)
        flush(temporary)
        os.rename(temporary, path)
    except BaseException:
        _remove(temporary)
        records.remove(folder, record)
        raise
    flush_one(folder)
    details = _write_manifest(folder, name, step, cursor, skipped)
    began_from = last_checkpoint()
    try:
        reports.commit(step, path, deadline_s, details)
    except StaleAttempt:
        _remove(path)
        records.remove(folder, record)
        raise
    except BaseException:
        process().failed.add(name)
        raise
    write_record(folder, record._replace(confirmed=time.time()))
    saved = Checkpoint(path, step)
    note_committed(saved)
    prune(folder, rules, {path, began_from.path if began_from else ""})
    return saved


def _write_manifest(folder: str, name: str, step: int, cursor: str | None, skipped: tuple[Any, ...]) -> dict[str, Any]:
    """Write the manifest; returns the fields of the report that describe it."""
    from muster.sdk.saves import manifest
    from muster.sdk.saves.heartbeat import Heartbeat
    from muster.sdk.saves.targets import shards_of

    with Heartbeat(step):
        shards = shards_of(os.path.join(folder, name), 0)
    known = manifest.new(step, False, cursor, skipped, shards)
    data = manifest.encode(known)
    try:
        records.write_manifest(folder, name, data)
    except OSError as error:
        _warn(f"cannot write the manifest of {name} ({error.strerror}): it cannot be verified when it is loaded")
        return {}
    return manifest.details(known, data)


def unused_name(folder: str, name: str) -> str:
    """The name, with a number appended if the same step was saved before."""
    again, unused = 0, name
    while os.path.lexists(os.path.join(folder, unused)):
        again += 1
        unused = f"{name}-{again}"
    return unused


def _finished(folder: str) -> Iterator[tuple[tuple[int, int, int], str]]:
    """((step, attempt, times saved), path) of each finished checkpoint."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            order = order_of(name)
            if order:
                yield order, os.path.join(folder, name)


def write_record(folder: str, record: records.Record) -> None:
    """Write the record. If that fails, the checkpoint counts nevertheless, but is never removed."""
    try:
        records.write(folder, record)
    except OSError as error:
        where = os.path.join(folder, records.FOLDER)
        _warn(f"cannot write to {where} ({error.strerror}): {record.name} will not be removed when it is old")


def _warn(message: str) -> None:
    print(f"muster: {message}", file=sys.stderr, flush=True)


def prune(folder: str, rules: Retention, protected: set[str]) -> None:
    """Remove checkpoints of this job that are no longer needed. Files of newer attempts, other jobs and users stay.

    Removed are:
    - confirmed checkpoints, after enough newer ones were confirmed and checked;
    - unconfirmed checkpoints that are older than a confirmed one;
    - unfinished files of older attempts.
    """
    from muster.sdk.saves import retention

    mine = records.new("", 0, place.attempt())
    ours = [each for each in records.read(folder) if each.uid == mine.uid and each.temporary]
    ours = [each for each in ours if each.attempt <= mine.attempt]
    handed = os.path.realpath(os.environ.get("MUSTER_CHECKPOINT") or os.devnull)
    for index, each in enumerate(ours):
        # the attempt began from it, so it was confirmed: the writer died before it noted that
        if not each.confirmed and os.path.realpath(os.path.join(folder, each.name)) == handed:
            ours[index] = each._replace(confirmed=each.written)
            write_record(folder, ours[index])
    for each in retention.obsolete_in_folder(folder, ours, rules, protected):
        path, temporary = os.path.join(folder, each.name), os.path.join(folder, each.temporary)
        records.remove_manifest(folder, each.name)
        if os.path.lexists(path):  # a crash while it is removed leaves nothing that looks complete
            _remove(temporary)
            os.rename(path, temporary)
        _remove(temporary)
        records.remove(folder, each)
