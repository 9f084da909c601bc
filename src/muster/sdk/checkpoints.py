"""Writes and finds checkpoints. A crash while one is written does not damage earlier ones.

A checkpoint is written under a temporary name, flushed to disk and renamed. It counts when the controller has confirmed
it. Names contain the attempt, so a process of an older attempt cannot overwrite files of the current one. A record
beside the checkpoint (`muster.sdk.records`) names the job that wrote it. A job removes only its own checkpoints.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypeVar

from muster.sdk import place, records, reports
from muster.sdk.errors import StaleAttempt
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.durable import flush, flush_one
from muster.sdk.saves.durable import remove as _remove
from muster.sdk.saves.layout import is_url, unfinished_name
from muster.sdk.saves.own import checkpoint_dir, last_checkpoint, note_committed, prune, unused_name, warn, write_record
from muster.sdk.saves.process import process

if TYPE_CHECKING:
    from muster.sdk.saves.checkpoint_files import CheckpointFiles
    from muster.sdk.saves.retention import Retention
    from muster.sdk.saves.saving import Saving

Result = TypeVar("Result")


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
    if not 0 <= step <= records.STEP_MAX:
        raise ValueError(f"save_checkpoint(step=...) must be from 0 to {records.STEP_MAX}, not {step}")
    reports.report(step=step)  # prevents a stall: a large checkpoint takes long to write
    folder = checkpoint_dir()
    from muster.sdk.saves.retention import Retention

    rules = Retention(keep, keep_every, verify == "full")
    if sharded or background or is_url(folder):
        from muster.sdk.saves import background as saver
        from muster.sdk.saves.save import Wanted

        wanted = Wanted(step, deadline_s, sharded, background, cursor, tuple(skipped), rules)
        if background:
            return saver.save(wanted, folder, write, unfinished_max)
        with process().one_save:
            return saver.save(wanted, folder, write, unfinished_max)
    with process().one_save:
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
    path, temporary = os.path.join(folder, name), os.path.join(folder, unfinished_name(name, str(os.getpid())))
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
        warn(f"cannot write the manifest of {name} ({error.strerror}): it cannot be verified when it is loaded")
        return {}
    return manifest.details(known, data)
