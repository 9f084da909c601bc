"""Remembers successful ends that supervisors reported before their pods were deleted: such a report still counts.

This is kept in memory, like all reports of supervisors. A controller that was away learns the end from the supervisor
itself: while its pod is being deleted, it waits for half of the grace to be heard (supervisor/state/machine.py).
An end that no controller heard before the pod was gone costs a restart: docs/dev/NOTES.md explains why.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.kube.objects.pod import Pod
from muster.trainingjobs.pods.slots import slot_of
from muster.trainingjobs.snapshot import Member

_NONE: Final[Mapping[int, int]] = MappingProxyType({})


class Ends:
    """For each job UID: slot -> attempt that ended well in a pod that is gone."""

    def __init__(self) -> None:
        """Starts empty."""
        self._jobs: dict[str, dict[int, int]] = {}

    def pod_gone(self, job_uid: str, pod: Pod, member: Member | None) -> None:
        """Keep the supervisor's last report if it was a successful end."""
        if member is not None and finished_well(member):
            self._jobs.setdefault(job_uid, {})[slot_of(pod)] = member.attempt

    def of(self, job_uid: str) -> Mapping[int, int]:
        """Returns slot -> attempt that ended well, for a job."""
        return self._jobs.get(job_uid, _NONE)

    def forget(self, job_uid: str) -> None:
        """Forget a job because another attempt begins or the job is gone.

        A status that was wiped may use the same attempt number again.
        """
        self._jobs.pop(job_uid, None)

    def clear(self) -> None:
        """Forget everything, because another replica led in between."""
        self._jobs.clear()


def finished_well(member: Member) -> bool:
    """Returns whether the supervisor reported that its part of the attempt ended well."""
    if member.state != "finished":
        return False
    return member.exit is None or (member.exit.code == 0 and member.exit.signal == 0)
