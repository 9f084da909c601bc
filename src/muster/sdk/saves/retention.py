"""Removes checkpoints that are no longer needed, after enough newer ones were confirmed and checked.

Sources of the rule: KempnerForge issue 102 and Megatron-Bridge pull request 5184, where retention removed the last
durable checkpoint while a newer one was still being written.
"""

from __future__ import annotations

import os
from typing import AbstractSet, Callable, NamedTuple, Sequence

from muster.sdk import place, records
from muster.sdk.records import Record
from muster.sdk.saves import folders, layout
from muster.sdk.saves.bucket import Bucket
from muster.sdk.saves.manifest import BadCheckpoint
from muster.sdk.saves.process import process


class Retention(NamedTuple):
    """Which checkpoints stay.

    Attributes:
        keep: number of newest confirmed checkpoints, at least 1.
        keep_every: the first checkpoint at or after each multiple of this many steps stays for ever; 0 for none.
        full: whether bytes are read to check a checkpoint. Otherwise sizes and ETags are compared.
    """

    keep: int = 2
    keep_every: int = 0
    full: bool = False


def obsolete(
    ours: Sequence[Record],
    rules: Retention,
    good: Callable[[Record], bool],
    protected: AbstractSet[str],
    failed: AbstractSet[str],
    current_attempt: int,
) -> list[Record]:
    """Returns the checkpoints to remove, oldest first.

    Nothing is removed that is not older than `keep` confirmed checkpoints in good order.

    Args:
        ours: records of the job's checkpoints, of this attempt and earlier ones.
        rules: the user's rules.
        good: returns whether the objects of a checkpoint are all there. Called for as few as possible.
        protected: names that stay.
        failed: names of checkpoints that this process failed to save. Other unconfirmed ones of the current attempt
            stay: other ranks may be ahead of rank 0.
        current_attempt: 0 outside Muster. Then another program may be writing the unconfirmed ones.
    """
    confirmed = sorted((each for each in ours if each.confirmed), key=_order, reverse=True)
    kept = 0
    oldest_kept: Record | None = None
    for each in confirmed:
        if not each.bad and good(each):
            kept += 1
            oldest_kept = each
        if kept == max(rules.keep, 1):
            break
    if oldest_kept is None:
        return []
    enough = kept == max(rules.keep, 1)
    newest = next(each for each in confirmed if not each.bad)
    forever = _forever(confirmed, rules.keep_every)
    old = []
    for each in sorted(ours, key=_order):
        if each.name in protected or each.name in forever:
            continue
        if each.confirmed:
            if enough and _order(each) < _order(oldest_kept):
                old.append(each)
        elif _order(each) < _order(newest) and (0 < each.attempt < current_attempt or each.name in failed):
            old.append(each)
    return old


def _forever(confirmed: Sequence[Record], every: int) -> set[str]:
    first: dict[int, Record] = {}
    if every > 0:
        for each in sorted(confirmed, key=lambda each: (each.step, -each.attempt)):
            if each.step >= every and not each.bad:
                first.setdefault(each.step // every, each)
    return {each.name for each in first.values()}


def _order(record: Record) -> tuple[int, int, int, float]:
    _, _, again = layout.order_of(record.name) or (0, 0, 0)
    return (record.attempt, record.step, again, record.written)


def obsolete_in_folder(
    folder: str, ours: Sequence[Record], rules: Retention, protected: AbstractSet[str]
) -> list[Record]:
    """As `obsolete`, for records in a folder. `protected` are paths; what this attempt began from is protected too."""
    paths = {*protected, began()}
    real = {os.path.realpath(each) for each in paths if each}
    stay = {each.name for each in ours if os.path.realpath(os.path.join(folder, each.name)) in real}

    def good(record: Record) -> bool:
        try:
            folders.check(folder, record.name, rules.full)
        except BadCheckpoint:
            return False
        return True

    state = process()
    return obsolete(ours, rules, good, stay, state.failed, place.attempt())


def began() -> str:
    """The checkpoint from which this attempt began: what load_checkpoint returned, or the controller's choice."""
    return process().began or os.environ.get("MUSTER_CHECKPOINT", "")


def run(bucket: Bucket, rules: Retention, protected: AbstractSet[str]) -> None:
    """Remove obsolete checkpoints of this job in an object store, and finish removals that were interrupted.

    Files of newer attempts, other jobs and users stay. Raises StoreError.
    """
    mine, state = records.new("", 0, place.attempt()), process()
    ours = [each for each in bucket.read_records() if each.uid == mine.uid and each.attempt <= mine.attempt]
    stay = {*protected, layout.split(began())[1]}

    def good(record: Record) -> bool:
        try:
            bucket.check(record.name, rules.full)
        except BadCheckpoint:
            return False
        return True

    for record in obsolete(ours, rules, good, stay, state.failed, mine.attempt):
        bucket.remove(record.name)
        state.failed.discard(record.name)
