"""Remembers successful ends that supervisors reported before their pods were deleted, because they still count.

They are in memory, like all reports of supervisors. While its pod is being deleted, a supervisor waits for up to half
of the grace period for a controller that was away (supervisor/state/machine.py). If no controller receives the report
before the pod is gone, the job restarts: docs/dev/NOTES.md explains why.
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
    """By job UID: slot -> attempt that succeeded in a pod that is gone."""

    def __init__(self) -> None:
        """Starts empty."""
        self._jobs: dict[str, dict[int, int]] = {}

    def pod_gone(self, job_uid: str, pod: Pod, member: Member | None) -> None:
        """Keep the supervisor's last report if it was a successful end."""
        if member is not None and finished_well(member):
            self._jobs.setdefault(job_uid, {})[slot_of(pod)] = member.attempt

    def of(self, job_uid: str) -> Mapping[int, int]:
        """Returns slot -> attempt that succeeded, for a job."""
        return self._jobs.get(job_uid, _NONE)

    def forget(self, job_uid: str) -> None:
        """Forget a job because another attempt begins or the job is gone.

        If a user resets the status, the same attempt number may be used again.
        """
        self._jobs.pop(job_uid, None)

    def clear(self) -> None:
        """Forget everything, because another replica led in between."""
        self._jobs.clear()


def finished_well(member: Member) -> bool:
    """Returns whether the supervisor reported that its part of the attempt succeeded."""
    if member.state != "finished":
        return False
    return member.exit is None or (member.exit.code == 0 and member.exit.signal == 0)
