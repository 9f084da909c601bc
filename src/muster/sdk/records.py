"""Records of checkpoints on disk: the job that wrote it, the step, and when the controller confirmed it.

A folder of checkpoints holds them in `.muster/`, one small JSON file for each checkpoint. They say which checkpoints a
job may remove (only its own). Another job can continue from one after the job that wrote it was deleted. Standard
library only, and no imports from the SDK: the rank supervisor loads this file alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import urllib.parse
from typing import Any, Iterator, NamedTuple

FOLDER = ".muster"
MANIFEST_SUFFIX = ".manifest.json"
"""End of the name of a manifest beside the records (`muster.sdk.saves.manifest`)."""
_NAME = re.compile(r"step-\d+-attempt-\d+(-\d+)?$")
REPORTED_MAX = 5
"""Most records of checkpoints that the program wrote by itself and reported."""
_RECORD_BYTES_MAX = 64 * 1024
STEP_MAX = 2**63 - 1
"""The largest integer in Kubernetes (64 bits)."""
_STEP_DIGITS_MAX = 32


class Record(NamedTuple):
    """The record of one checkpoint.

    Attributes:
        name: its path below the folder that holds the record.
        step: its step.
        attempt: the attempt that wrote it; 0 outside Muster.
        uid: UID of the job that wrote it; "" outside Muster.
        job: that job's name.
        namespace: that job's namespace.
        written: when writing began, in seconds since the epoch.
        confirmed: when the controller confirmed it, in seconds since the epoch; 0 while it has not.
        temporary: the name under which save_checkpoint writes it; "" if the program wrote it by itself.
        bad: why it could not be loaded; "" while no rank has found a problem.
    """

    name: str
    step: int
    attempt: int
    uid: str
    job: str
    namespace: str
    written: float
    confirmed: float = 0.0
    temporary: str = ""
    bad: str = ""


class Found(NamedTuple):
    """A checkpoint on disk, and its record."""

    path: str
    record: Record


def new(name: str, step: int, attempt: int, temporary: str = "") -> Record:
    """Create the record of a checkpoint that this process writes; the environment names the job."""
    env = os.environ if attempt else {}  # outside an attempt it belongs to no job
    uid, job, namespace = (env.get(key, "") for key in ("MUSTER_JOB_UID", "MUSTER_JOB", "MUSTER_NAMESPACE"))
    return Record(name, step, attempt, uid, job, namespace, time.time(), 0.0, temporary)


def write(folder: str, record: Record) -> None:
    """Write a record, durably and in one step. Raises OSError."""
    _write_file(folder, file_name(record.name), encode(record))


def _write_file(folder: str, name: str, data: bytes) -> None:
    """Write a file beside the records, durably and in one step."""
    below = os.path.join(folder, FOLDER)
    os.makedirs(below, exist_ok=True)
    path = os.path.join(below, name)
    partial = f"{path}.{os.getpid()}.new"
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    handle = os.open(below, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def exists(folder: str, name: str) -> bool:
    """Returns whether a checkpoint has a record."""
    return os.path.exists(os.path.join(folder, FOLDER, file_name(name)))


def write_manifest(folder: str, name: str, data: bytes) -> None:
    """Write the manifest of a checkpoint, durably and in one step. Raises OSError."""
    _write_file(folder, urllib.parse.quote(name, safe="") + MANIFEST_SUFFIX, data)


def manifest_path(folder: str, name: str) -> str:
    """Where the manifest of a checkpoint in this folder is."""
    return os.path.join(folder, FOLDER, urllib.parse.quote(name, safe="") + MANIFEST_SUFFIX)


def remove_manifest(folder: str, name: str) -> None:
    """Remove the manifest of a checkpoint."""
    with contextlib.suppress(OSError):
        os.unlink(manifest_path(folder, name))


def remove(folder: str, record: Record) -> None:
    """Remove a record and its manifest, not its checkpoint."""
    remove_manifest(folder, record.name)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, FOLDER, file_name(record.name)))


def read(folder: str) -> list[Record]:
    """All records in a folder, oldest first. A file that is not a record is left alone."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(folder, FOLDER)):
            if name.endswith(".json") and not name.endswith(MANIFEST_SUFFIX):
                record = _read(os.path.join(folder, FOLDER, name))
                if record is not None:
                    found.append(record)
    return sorted(found, key=lambda each: (each.written, each.step))


def confirmed(folder: str) -> Iterator[Found]:
    """The existing confirmed checkpoints in a folder, newest first, without bad ones; those of one job are adjacent.

    Clocks of nodes differ. So within a job the attempt decides, and within an attempt the clock of its only writer.
    """
    jobs: dict[str, list[Record]] = {}
    for record in read(folder):
        if record.confirmed and not record.bad and os.path.exists(os.path.join(folder, record.name)):
            jobs.setdefault(record.uid, []).append(record)
    for ours in sorted(jobs.values(), key=lambda each: max(one.confirmed for one in each), reverse=True):
        for record in sorted(ours, key=lambda each: (each.attempt, each.written), reverse=True):
            yield Found(os.path.join(folder, record.name), record)


def all_below(root: str) -> list[Found]:
    """The newest confirmed checkpoint of each job in a folder or in one of its subfolders, newest first."""
    return _newest_in([root, *_subfolders(root)])


def _newest_in(folders: list[str]) -> list[Found]:
    newest: dict[str, Found] = {}
    for folder in folders:
        for found in confirmed(folder):
            known = newest.get(found.record.uid)
            if known is None or (known.record.attempt, known.record.written) < (
                found.record.attempt,
                found.record.written,
            ):
                newest[found.record.uid] = found
    return sorted(newest.values(), key=lambda each: each.record.confirmed, reverse=True)


def of_job(root: str, namespace: str, job: str) -> Found | None:
    """The newest confirmed checkpoint of a job of this name in `root`.

    If several jobs had the name, the newest job counts.
    """
    wanted = (namespace, job)
    folders = [root, *(each for each in _subfolders(root) if os.path.basename(each).startswith(job + "-"))]
    return next((each for each in _newest_in(folders) if (each.record.namespace, each.record.job) == wanted), None)


def at(path: str) -> Found | None:
    """Returns the newest confirmed checkpoint in a path, or the checkpoint at the path itself; None without one."""
    if not os.path.exists(path):  # a link without a target does not count
        return None
    inside = next(confirmed(path), None)
    if inside is not None:
        return inside
    folder, name = os.path.split(os.path.abspath(path))
    record = next((each for each in read(folder) if each.name == name), None)
    return Found(path, record or Record(name, step_in(name), 0, "", "", "", 0.0))


def of_others(root: str, uid: str) -> list[Found]:
    """The newest checkpoint of each other job in a folder, newest first; checkpoints without a record come last."""
    found = [each for each in all_below(root) if each.record.uid != uid]
    recorded = {each.name for each in read(root)}
    with contextlib.suppress(OSError):
        names = [each for each in os.listdir(root) if _NAME.match(each) and each not in recorded]
        newest = max(names, key=lambda each: (step_in(each), each), default="")
        if newest:
            found.append(Found(os.path.join(root, newest), Record(newest, step_in(newest), 0, "", "", "", 0.0)))
    return found


def step_in(name: str) -> int:
    """The step in a name such as step-00000040-attempt-1; 0 without a valid step."""
    word, _, rest = name.partition("-")
    digits = rest.partition("-")[0]
    step = int(digits) if word == "step" and digits.isdecimal() and len(digits) <= _STEP_DIGITS_MAX else 0
    return step if step <= STEP_MAX else 0


def _subfolders(root: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        return sorted(each.path for each in entries if each.name != FOLDER and each.is_dir())
    return []


def file_name(name: str) -> str:
    """The name of the file that holds a checkpoint's record."""
    return urllib.parse.quote(name, safe="") + ".json"


def encode(record: Record) -> bytes:
    """The bytes of a record's file."""
    return json.dumps(record._asdict()).encode()


def parse(data: bytes) -> Record | None:
    """The record in a file's bytes; None if they are not a record."""
    try:
        said: Any = json.loads(data.decode("utf-8"))
        record = Record(**{name: said[name] for name in Record._fields if name in said})
        if not all(isinstance(getattr(record, name), kind) for name, kind in _TYPES.items()):
            return None
        if abs(record.step) > STEP_MAX:
            return None
    except (ValueError, TypeError, KeyError):
        return None
    inside = record.name and not os.path.isabs(record.name) and ".." not in record.name.split("/")
    return record if inside and os.path.basename(record.temporary) == record.temporary else None


def _read(path: str) -> Record | None:
    try:
        with open(path, "rb") as file:
            return parse(file.read(_RECORD_BYTES_MAX))
    except OSError:
        return None


_TYPES: dict[str, Any] = {
    "name": str, "step": int, "attempt": int, "uid": str, "job": str, "namespace": str,
    "written": (int, float), "confirmed": (int, float), "temporary": str, "bad": str,
}  # fmt: skip
