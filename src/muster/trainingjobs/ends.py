"""Good ends that supervisors reported before their pods were deleted: the report counts although the pod is gone.

This lives in memory, as what supervisors say does. A controller that was away hears of the end from the supervisor
itself: while its pod is being deleted it waits for half of the grace to be heard (supervisor/machine.py). An end that
no controller heard before the pod was gone costs a restart: docs/dev/STATUS.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.kube.pod import Pod
from muster.trainingjobs.slots import slot_of
from muster.trainingjobs.snapshot import Member

_NONE: Final[Mapping[int, int]] = MappingProxyType({})


class Ends:
    """Slot -> attempt that ended well there, of pods that are gone; by job UID."""

    def __init__(self) -> None:
        """No pod has gone yet."""
        self._jobs: dict[str, dict[int, int]] = {}

    def pod_gone(self, job_uid: str, pod: Pod, member: Member | None) -> None:
        """Keep what the pod's supervisor said last, where that was a good end."""
        if member is not None and finished_well(member):
            self._jobs.setdefault(job_uid, {})[slot_of(pod)] = member.attempt

    def of(self, job_uid: str) -> Mapping[int, int]:
        """What is known of a job's attempts."""
        return self._jobs.get(job_uid, _NONE)

    def forget(self, job_uid: str) -> None:
        """Another attempt begins, or the job is gone: a status that was wiped may give the same number again."""
        self._jobs.pop(job_uid, None)

    def clear(self) -> None:
        """Another replica led meanwhile."""
        self._jobs.clear()


def finished_well(member: Member) -> bool:
    """Whether the supervisor reported that its part of the attempt ended, and ended well."""
    if member.state != "finished":
        return False
    return member.exit is None or (member.exit.code == 0 and member.exit.signal == 0)
