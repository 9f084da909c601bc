"""Writes and finds checkpoints. A crash while one is written does not damage earlier ones.

A checkpoint is written under a temporary name, flushed to disk and renamed. It counts when the controller has confirmed
it. Names contain the attempt, so a process of an older attempt cannot overwrite files of the current one. A record
beside the checkpoint (`muster.sdk.records`) names the job that wrote it. A job removes only its own checkpoints.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from typing import Callable, Iterator, NamedTuple

from muster.sdk import place, records, reports
from muster.sdk.errors import StaleAttempt

_NAME = re.compile(r"step-(\d+)-attempt-(\d+)(?:-(\d+))?$")


class Checkpoint(NamedTuple):
    """A finished checkpoint: the file or folder, and its step."""

    path: str
    step: int


_committed: Checkpoint | None = None


def checkpoint_dir() -> str:
    """The folder for this job's checkpoints; RuntimeError if it is not set.

    Under Muster it is the job's own folder below `checkpoint.path`.
    """
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    if not folder:
        raise RuntimeError(
            "no checkpoint folder: `muster run --checkpoint DIR`, or MUSTER_CHECKPOINT_DIR without Muster"
        )
    return folder


def last_checkpoint() -> Checkpoint | None:
    """The checkpoint from which to start, or None. Outside Muster it is the newest one in checkpoint_dir()."""
    if _committed is not None:
        return _committed
    if place.attempt():
        path = os.environ.get("MUSTER_CHECKPOINT", "")
        return Checkpoint(path, int(os.environ.get("MUSTER_CHECKPOINT_STEP") or 0)) if path else None
    if not os.environ.get("MUSTER_CHECKPOINT_DIR"):
        return None
    found = list(_finished(checkpoint_dir()))
    if not found:
        return None
    (step, _, _), path = max(found)
    return Checkpoint(path, step)


def save_checkpoint(
    step: int, write: Callable[[str], object], keep: int = 2, deadline_s: float = reports.DEFAULT_DEADLINE_S
) -> Checkpoint | None:
    """Write a checkpoint, wait until the controller confirms it, then remove old ones.

    Only rank 0 saves; others get None.

    Only checkpoints that this job wrote are removed, never those of another job or of another program.

    Args:
        step: the step of the checkpoint.
        write: called with a path that does not exist yet. It creates a file or a folder there.
        keep: number of confirmed checkpoints to keep. The newest one, and the one from which this attempt began, always
            stay.
        deadline_s: how long to wait for the controller.

    Raises:
        StaleAttempt: the job has been restarted without this process. The new files are removed.
        ControllerUnavailable: not confirmed within `deadline_s`. The files stay, and the previous checkpoint still
            counts.
    """
    global _committed
    if place.rank() != 0:
        return None
    reports.report(step=int(step))  # prevents a stall: a large checkpoint takes long to write
    folder = checkpoint_dir()
    os.makedirs(folder, exist_ok=True)
    name = _unused_name(folder, f"step-{step:08d}-attempt-{place.attempt()}")
    path, temporary = os.path.join(folder, name), os.path.join(folder, f".writing-{name}-{os.getpid()}")
    record = records.new(name, int(step), place.attempt(), os.path.basename(temporary))
    _remove(temporary)
    _record(folder, record)
    try:
        write(temporary)
        _flush(temporary)
        os.rename(temporary, path)
    except BaseException:
        _remove(temporary)
        records.remove(folder, record)
        raise
    _flush_one(folder)
    began_from = last_checkpoint()
    try:
        reports.commit(int(step), path, deadline_s)
    except StaleAttempt:
        _remove(path)
        records.remove(folder, record)
        raise
    _record(folder, record._replace(confirmed=time.time()))
    _committed = Checkpoint(path, step)
    protected = {path, os.environ.get("MUSTER_CHECKPOINT", ""), began_from.path if began_from else ""}
    _prune(folder, keep, {os.path.realpath(each) for each in protected if each})
    return _committed


def _unused_name(folder: str, name: str) -> str:
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
            match = _NAME.match(name)
            if match:
                yield (int(match[1]), int(match[2]), int(match[3] or 0)), os.path.join(folder, name)


def _record(folder: str, record: records.Record) -> None:
    """Write the record. If that fails, the checkpoint counts nevertheless, but is never removed."""
    try:
        records.write(folder, record)
    except OSError as error:
        where = os.path.join(folder, records.FOLDER)
        print(
            f"muster: cannot write to {where} ({error.strerror}): {record.name} will not be removed when it is old",
            file=sys.stderr,
            flush=True,
        )


def _prune(folder: str, keep: int, protected: set[str]) -> None:
    """Remove checkpoints of this job that are no longer needed. Files of newer attempts, other jobs and users stay.

    Removed are:
    - all but the newest `keep` confirmed checkpoints;
    - unconfirmed checkpoints that are older than a confirmed one;
    - unfinished files of older attempts.
    """
    mine = records.new("", 0, place.attempt())
    ours = [each for each in records.read(folder) if each.uid == mine.uid and each.temporary]
    ours = [each for each in ours if each.attempt <= mine.attempt]
    handed = os.path.realpath(os.environ.get("MUSTER_CHECKPOINT") or os.devnull)
    for index, each in enumerate(
        ours
    ):  # the attempt began from it, so it was confirmed: the writer died before it noted that
        if not each.confirmed and os.path.realpath(os.path.join(folder, each.name)) == handed:
            ours[index] = each._replace(confirmed=each.written)
            _record(folder, ours[index])
    ours.sort(key=lambda each: (each.confirmed > 0, each.attempt, each.step, each.written), reverse=True)
    for index, each in enumerate(ours):
        path, temporary = os.path.join(folder, each.name), os.path.join(folder, each.temporary)
        wanted = index < max(keep, 1) if each.confirmed else not mine.attempt  # another program may be writing it
        if wanted or os.path.realpath(path) in protected:
            continue
        _remove(path)
        _remove(temporary)
        records.remove(folder, each)


def _flush(path: str) -> None:
    """Fsync a file, or a folder with everything in it."""
    for parent, _, files in os.walk(path):
        for name in files:
            _flush_one(os.path.join(parent, name))
        _flush_one(parent)
    if not os.path.isdir(path):
        _flush_one(path)


def _flush_one(path: str) -> None:
    if os.path.islink(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
