"""Finds the checkpoints of the job, and removes old ones from its folder."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Iterator

from muster.sdk import place, records
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.durable import remove as _remove
from muster.sdk.saves.layout import STORES, is_url, order_of, plain

if TYPE_CHECKING:
    from muster.sdk.saves.retention import Retention

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


def note_committed(checkpoint: Checkpoint) -> None:
    """Make this the process's last checkpoint."""
    global _committed
    _committed = checkpoint


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
        warn(f"cannot write to {where} ({error.strerror}): {record.name} will not be removed when it is old")


def warn(message: str) -> None:
    """Write a warning to the log of this rank."""
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
