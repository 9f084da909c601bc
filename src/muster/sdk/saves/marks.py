"""Marks in the records of checkpoints: bad ones, and those that were confirmed although their writer died."""

from __future__ import annotations

import contextlib
import os

from muster.sdk import place, records
from muster.sdk.data.errors import NotFound, StoreError
from muster.sdk.records import Record
from muster.sdk.saves import bucket as buckets
from muster.sdk.saves import layout
from muster.sdk.saves.bucket import Bucket

_DEADLINE_S = 30.0


def bad(path: str, reason: str) -> None:
    """Mark a checkpoint of this job as bad, so that it does not count as kept. Best effort."""
    folder, name = layout.split(path) if layout.is_url(path) else os.path.split(layout.plain(path))
    with contextlib.suppress(StoreError, OSError):
        if layout.is_url(path):
            bucket = buckets.open_bucket(folder, _DEADLINE_S)
            record = bucket.record(name)
            if record is not None and _ours(record):
                bucket.write_record(record._replace(bad=reason))
            return
        for record in records.read(folder):
            if record.name == name and _ours(record):
                records.write(folder, record._replace(bad=reason))


def confirmed_at_start(bucket: Bucket) -> None:
    """Note that the checkpoint from which this attempt began was confirmed: its writer may have died before it did.

    Raises StoreError.
    """
    path = os.environ.get("MUSTER_CHECKPOINT", "")
    folder, name = layout.split(path) if layout.is_url(path) else ("", "")
    if folder.rstrip("/") != bucket.url.rstrip("/"):
        return
    with contextlib.suppress(NotFound):
        record = bucket.record(name)
        if record is not None and _ours(record) and not record.confirmed:
            bucket.write_record(record._replace(confirmed=record.written))


def _ours(record: Record) -> bool:
    return record.uid == records.new("", 0, place.attempt()).uid
