"""Judges programs that could not be executed. On every node: the job fails. On some nodes: these nodes are at fault.

All nodes of a job run the same image. So each supervisor checks the required programs before an attempt, even if only
the first node starts mpiexec. Reports are typed: errno and the program, or exit code 126 or 127. Shells use these codes
for a command that they cannot execute or find (POSIX.1-2024, Shell, 2.8.2 Exit Status for Commands). A rank that ends
with such a code lets mpiexec wait for a moment (supervisor/ranks/rank.py), so that the other nodes can report the same.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import Enum
from typing import Final

from muster.trainingjobs.faults.rules import Evidence
from muster.trainingjobs.pods.slots import Clock, Slot
from muster.trainingjobs.snapshot import SETTLE_S, JobSnapshot, RankExit
from muster.trainingjobs.status import builder

EVERYWHERE: Final = "Everywhere"
"""Reason of the evidence if no node can start the attempt; see the fault table."""
HERE_RULE: Final = "cannot-start-here"
_SHELL_CODES: Final = (126, 127)
_EARLY_S: Final = 60.0
"""If a program ends with such a code later than this, it had started."""
_LAUNCHERS: Final = {
    "mpiexec": "the image needs MPICH, Intel MPI or Open MPI (for a cluster of `muster up`, which has no images: "
    "pip install mpich mpi4py beside Muster), or the job another spec.launcher: torchrun or none",
    "torchrun": "the image needs PyTorch, or the job another spec.launcher: mpi or none",
}


class Found(Enum):
    """The result of a comparison of the nodes' reports."""

    NOTHING = 0
    WAIT = 1
    EVERYWHERE = 2


def look(snapshot: JobSnapshot, part: Sequence[Slot], clock: Clock) -> Found:
    """Decides whether all nodes failed to start the running attempt; WAIT while some may still report it."""
    failed = [exit_of(slot, snapshot) for slot in part]
    reported = [(slot, ended) for slot, ended in zip(part, failed, strict=True) if ended is not None]
    if not reported:
        return Found.NOTHING
    if len(reported) == len(part):
        return Found.EVERYWHERE
    first = min(slot.member.exit_at for slot, _ in reported if slot.member is not None)
    return Found.NOTHING if clock.passed(first + SETTLE_S) else Found.WAIT


def exit_of(slot: Slot, snapshot: JobSnapshot) -> RankExit | None:
    """Returns how the slot failed to start in the current attempt; None if it started."""
    member = slot.member
    ended = member.exit if member is not None else None
    if ended is None or ended.attempt != snapshot.job.status.attempt or ended.signal:
        return None
    if ended.errno:
        return ended
    if ended.code not in _SHELL_CODES or ended.rank is None or ended.rank < 0 or snapshot.progress is not None:
        return None
    began = next((each.last_transition_time for each in snapshot.job.status.conditions if each.type == "Running"), None)
    early = began is not None and member is not None and member.exit_at - began.timestamp() <= _EARLY_S
    return ended if early else None


def everywhere(part: Sequence[Slot], snapshot: JobSnapshot) -> Evidence:
    """Evidence from the first node, if all nodes reported a failure to start."""
    slot, ended = next((slot, ended) for slot in part if (ended := exit_of(slot, snapshot)) is not None)
    return _evidence(slot, ended, EVERYWHERE)


def here(slot: Slot, snapshot: JobSnapshot) -> Evidence | None:
    """Evidence that only this node could not find a command; None if the node is not at fault.

    If the last attempt ended in the same way on another node, the failure moves with a rank, so no node is at fault.
    """
    ended, before = exit_of(slot, snapshot), builder.restart_fault(snapshot.job.status)
    if ended is None or ended.errno:
        return None
    if before is not None and before.rule == HERE_RULE and before.node != slot.node:
        return None
    return _evidence(slot, ended, "")


def _evidence(slot: Slot, ended: RankExit, reason: str) -> Evidence:
    seen_at = slot.member.exit_at if slot.member is not None else 0.0
    said = what(ended)
    if not ended.errno and ended.tail:
        said += f"; last line: {ended.tail[-1].strip()}"
    return Evidence(
        kind="start",
        slot=slot.number,
        seen_at=seen_at,
        node=slot.node,
        reason=reason,
        code=ended.code,
        message=said,
        time=ended.time,
    )


def what(ended: RankExit) -> str:
    """Returns a message: which program could not be executed, why, and what to do."""
    name = ended.program or "the program"
    if ended.errno == errno.ENOENT:
        todo = _LAUNCHERS.get(name, "install it in the image, or name a program that is there (spec.command)")
        return f"{name} was not found: {todo}"
    if ended.errno == errno.EACCES:
        return f"{name} may not be executed: chmod +x it, or run it through its interpreter, such as [bash, {name}]"
    if ended.errno == errno.ENOEXEC:
        return (
            f"{name} is not a binary for this machine, nor a script that names its interpreter: begin it with a line "
            "such as #!/bin/sh, or build the image for this kind of CPU"
        )
    if ended.errno == errno.E2BIG:
        return (
            f"the command of {name} is too long for the kernel (most machines take 128 KiB for each argument, and all "
            "arguments with the environment have a limit): put long values into a file, and give the program its name "
            "(spec.command)"
        )
    if ended.errno:
        return f"{name} could not be executed: {errno.errorcode.get(ended.errno, ended.errno)}"
    if ended.code == 126:
        return "the program ended with exit code 126: a command in it may not be executed"
    return "the program ended with exit code 127: a command in it was not found; install it in the image"
