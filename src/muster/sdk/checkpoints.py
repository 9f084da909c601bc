"""Checkpoints: where they lie, which one counts, and writing one so that a crash leaves the one before whole.

A checkpoint is written under a temporary name, flushed to disk, renamed, and counts once the controller has
confirmed it. Names carry the attempt: a process of an older attempt that still writes cannot touch what the current
one wrote.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Callable, Iterator, NamedTuple

from muster.sdk import place, reports
from muster.sdk.errors import StaleAttempt

_NAME = re.compile(r"step-(\d+)-attempt-(\d+)(?:-(\d+))?$")
_TEMPORARY = re.compile(r"\.writing-step-\d+-attempt-(\d+)-\d+$")


class Checkpoint(NamedTuple):
    """A finished checkpoint: the file or folder, and the step it was written at."""

    path: str
    step: int


_committed: Checkpoint | None = None


def checkpoint_dir() -> str:
    """The folder for checkpoints (the job's `checkpoint.path`); RuntimeError where none is set."""
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    if not folder:
        raise RuntimeError(
            "no checkpoint folder: `muster run --checkpoint DIR`, or MUSTER_CHECKPOINT_DIR without Muster"
        )
    return folder


def last_checkpoint() -> Checkpoint | None:
    """The checkpoint to start from, or None: the confirmed one; outside Muster the newest in checkpoint_dir()."""
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
    (_, step, _), path = max(found)
    return Checkpoint(path, step)


def save_checkpoint(
    step: int, write: Callable[[str], object], keep: int = 2, deadline_s: float = reports.DEFAULT_DEADLINE_S
) -> Checkpoint | None:
    """Write a checkpoint, make it durable and have it confirmed; then remove old ones. Rank 0 saves, others get None.

    Args:
        step: the step it belongs to.
        write: called with a path that does not exist yet; makes a file or a folder there.
        keep: finished checkpoints to keep. The confirmed one and the one this attempt began from always stay.
        deadline_s: how long to wait for the controller.

    Raises:
        StaleAttempt: the job has been restarted without this process; what was written here is removed.
        ControllerUnavailable: not confirmed within `deadline_s`; the files stay, the previous checkpoint still counts.
    """
    global _committed
    if place.rank() != 0:
        return None
    folder = checkpoint_dir()
    os.makedirs(folder, exist_ok=True)
    name = f"step-{step:08d}-attempt-{place.attempt()}"
    temporary = os.path.join(folder, f".writing-{name}-{os.getpid()}")
    _remove(temporary)
    try:
        write(temporary)
        _flush(temporary)
        path, again = os.path.join(folder, name), 0
        while os.path.lexists(path):  # the same step saved twice
            again += 1
            path = os.path.join(folder, f"{name}-{again}")
        os.rename(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    _flush_one(folder)
    began_from = last_checkpoint()
    try:
        reports.report(step=step, checkpoint=path, deadline_s=deadline_s)
    except StaleAttempt:
        _remove(path)
        raise
    _committed = Checkpoint(path, step)
    protected = {path, os.environ.get("MUSTER_CHECKPOINT", ""), began_from.path if began_from else ""}
    _prune(folder, keep, protected)
    return _committed


def _finished(folder: str) -> Iterator[tuple[tuple[int, int, int], str]]:
    """((attempt, step, times saved), path) of each finished checkpoint."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            match = _NAME.match(name)
            if match:
                yield (int(match[2]), int(match[1]), int(match[3] or 0)), os.path.join(folder, name)


def _prune(folder: str, keep: int, protected: set[str]) -> None:
    """Remove all but the newest `keep`, and what older attempts left half-written; never what a newer attempt made."""
    ours = sorted((entry for entry in _finished(folder) if entry[0][0] <= place.attempt()), reverse=True)
    for _, path in ours[max(keep, 1) :]:
        if path not in protected:
            _remove(path)
    for name in os.listdir(folder):
        match = _TEMPORARY.match(name)
        if match and int(match[1]) < place.attempt():
            _remove(os.path.join(folder, name))


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
