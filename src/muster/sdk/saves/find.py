"""Finds the newest confirmed checkpoint of a job in an object store, by the records there. The rank supervisor runs it.

    python3 -m muster.sdk.saves.find s3://bucket/ckpt/train-1a2b3c4d --uid UID
    python3 -m muster.sdk.saves.find s3://bucket/ckpt --job NAME --namespace NAMESPACE

The last line is JSON: {"ok": true, "found": {"path", "job", "uid", "step"} or null}, or {"ok": false, "message"}.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

from muster.sdk import records
from muster.sdk.data.errors import StoreError
from muster.sdk.records import Record
from muster.sdk.saves import bucket as buckets
from muster.sdk.saves import layout
from muster.sdk.saves.bucket import Bucket

DEADLINE_S = 60.0


def newest(bucket: Bucket, uid: str) -> Record | None:
    """A job's newest confirmed checkpoint in its own folder, without bad and incomplete ones. Raises StoreError."""
    complete = {each.name for each in bucket.complete()}
    found = [each for each in bucket.read_records() if each.confirmed and not each.bad and each.name in complete]
    ours = [each for each in found if uid in ("", each.uid)]
    return max(ours, key=lambda each: (each.attempt, each.written), default=None)


def of_job(root: Bucket, namespace: str, job: str, deadline_s: float) -> tuple[str, Record] | None:
    """The folder and the newest checkpoint of a job of this name; of the newest one if there were several."""
    folders = {each.key.partition("/")[0] for each in root.store.list(f"{job}-")}
    candidates = []
    for folder in sorted(folders):
        bucket = buckets.open_bucket(layout.below(root.url, folder), deadline_s)
        try:
            record = newest(bucket, "")
        finally:
            bucket.store.close()
        if record is not None and (record.namespace, record.job) == (namespace, job):
            candidates.append((bucket.url, record))
    return max(candidates, key=lambda each: each[1].confirmed, default=None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print the result. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m muster.sdk.saves.find", description="Find a checkpoint.")
    parser.add_argument("url", help="the job's own folder, or with --job what is above it")
    parser.add_argument("--uid", default="", help="UID of the job that wrote it")
    parser.add_argument("--job", default="", help="name of the job that wrote it")
    parser.add_argument("--namespace", default="", help="namespace of that job")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="default: %(default)s")
    options = parser.parse_args(arguments)
    said: dict[str, Any] = {"ok": True, "found": None}
    try:
        bucket = buckets.open_bucket(options.url, options.deadline)
        try:
            if options.job:
                found = of_job(bucket, options.namespace, options.job, options.deadline)
            else:
                record = newest(bucket, options.uid)
                found = (options.url, record) if record is not None else None
        finally:
            bucket.store.close()
        if found is not None:
            said["found"] = _described(*found)
    except StoreError as error:
        said = {"ok": False, "reason": error.reason, "message": str(error)}
    print(json.dumps(said))
    return 0 if said["ok"] else 1


def _described(folder: str, record: records.Record) -> dict[str, Any]:
    return {"path": layout.below(folder, record.name), "job": record.job, "uid": record.uid, "step": record.step}


if __name__ == "__main__":
    sys.exit(main())
