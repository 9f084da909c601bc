"""Judges nodes that cannot write to the job's checkpoint folder or read its data. Supervisors try both.

Without this check the job would fail at its first save, and lose all steps until then. All nodes of a job have the same
mounts. So if some nodes can write and others cannot, these others are at fault. If no node can write, the folder is.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.trainingjobs.attempts.checkpoints import known
from muster.trainingjobs.faults.rules import Evidence
from muster.trainingjobs.plan import RecordEvent
from muster.trainingjobs.pods.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot, Unwritable
from muster.trainingjobs.status import builder

EVERYWHERE: Final = "NotWritable"
HERE: Final = "NotWritableHere"
NO_DATA: Final = "DataNotReadable"
"""Reasons of the evidence; see the fault table."""
_OTHER_FOLDER: Final = "or name another folder (spec.checkpoint.path, muster run --checkpoint)"
_OTHER_STORE: Final = (
    "correct spec.checkpoint (muster run --checkpoint, --store-endpoint, --store-region, --store-secret), or name "
    "another store"
)
_OTHER_DATA: Final = "correct spec.data (muster run --data)"
_MESSAGE_CHARS: Final = 600
_FIXES: Final = {
    errno.EROFS: "it is on a read-only file system; mount it with write access",
    errno.ENOSPC: "no space is left on its file system; free some",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.ENOENT: "a part of the path cannot be created, such as the target of a dangling link; create or mount it",
    errno.ENOTDIR: "a part of the path is a file; remove that file",
    errno.EEXIST: "the path is a file or a dangling link; remove it",
    errno.ENAMETOOLONG: "the path is too long; use a shorter one",
    errno.ELOOP: "the path has a loop of links; remove it",
}


class Refusal(msgspec.Struct, frozen=True):
    """Nodes that cannot write to the folder: evidence of each, or of one if `everywhere`.

    If the job has saved checkpoints before, or has made a step with its data, it runs nevertheless (`tolerated`): the
    cause may pass.
    """

    evidence: tuple[Evidence, ...]
    everywhere: bool = False
    tolerated: bool = False


def refused(snapshot: JobSnapshot, part: Sequence[Slot]) -> Refusal | None:
    """Return which nodes of the attempt cannot write to the checkpoint folder; None if all can, or do not know."""
    found = [(slot, folder) for slot in part if (folder := _refusal(slot, snapshot.job.status.attempt)) is not None]
    if not found:
        return None
    store = next(((slot, folder) for slot, folder in found if folder.reason), None)
    if store is not None:  # one node examines the store for all of them
        found, everywhere = [store], True
    else:
        everywhere = len(found) == len(part)
    if not everywhere:
        return Refusal(tuple(_evidence(slot, folder, HERE) for slot, folder in found))
    slot, folder = found[0]
    status = snapshot.job.status
    tolerated = any(each.attempt for each in known(status)) or (folder.data and status.progress is not None)
    evidence = _evidence(slot, folder, NO_DATA if folder.data else EVERYWHERE)
    return Refusal((evidence,), everywhere=True, tolerated=tolerated)


def event(refusal: Refusal) -> RecordEvent:
    """Returns the Event of an attempt that starts nevertheless."""
    found = refusal.evidence[0]
    return RecordEvent("DataNotReadable" if found.reason == NO_DATA else "NotWritable", found.message, warning=True)


def _refusal(slot: Slot, attempt: int) -> Unwritable | None:
    member = slot.member
    return member.unwritable if member is not None and member.attempt == attempt else None


def _evidence(slot: Slot, folder: Unwritable, reason: str) -> Evidence:
    seen_at = slot.member.state_at if slot.member is not None else 0.0
    return Evidence(
        kind="start", slot=slot.number, seen_at=seen_at, node=slot.node, reason=reason, message=_what(folder)
    )


def _what(folder: Unwritable) -> str:
    if folder.reason:
        said = builder.shortened(folder.message, _MESSAGE_CHARS)
        if folder.data:
            return f"cannot read the training data at {folder.path} ({folder.reason}): {said}; {_OTHER_DATA}"
        return f"cannot save checkpoints at {folder.path} ({folder.reason}): {said}; {_OTHER_STORE}"
    why = _FIXES.get(folder.errno) or (
        f"permission denied for user {folder.uid}; give this user the right to write there (chmod or chown, or "
        "securityContext in the pod template)"
    )
    return f"cannot write to the checkpoint folder {folder.path}: {why}, {_OTHER_FOLDER}"
