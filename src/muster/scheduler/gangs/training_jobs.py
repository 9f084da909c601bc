"""Facts about gangs from their TrainingJobs, and whether the owners of placements exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.kube.objects.meta import OwnerReference
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import TRAINING_JOB
from muster.scheduler.gangs.priority import JobFacts


class Jobs:
    """All TrainingJobs. It is a part of `ClusterState`.

    Args:
        gangs: all gangs, by key.
        keys: UID of a gang's object -> keys of its gangs.
        lost: whether an owner of another kind is known not to exist.
        changed: marks a gang for planning.
    """

    def __init__(
        self,
        gangs: Mapping[str, Gang],
        keys: Mapping[str, set[str]],
        *,
        lost: Callable[[OwnerReference], bool],
        changed: Callable[[Gang], None],
    ) -> None:
        self._facts: dict[str, JobFacts] = {}
        self._known = False
        self._gangs = gangs
        self._keys = keys
        self._lost = lost
        self._changed = changed

    def set(self, uid: str, facts: JobFacts) -> None:
        """Add or update a TrainingJob."""
        if self._facts.get(uid) != facts:
            self._facts[uid] = facts
            self._tell_all(uid)

    def remove(self, uid: str) -> None:
        """Remove a TrainingJob."""
        if self._facts.pop(uid, None) is not None:
            self._tell_all(uid)

    def synced(self) -> None:
        """Record that all TrainingJobs are listed: a placement with another owner is an orphan."""
        self._known = True
        for gang in self._gangs.values():
            self.look_for_owner(gang)

    def _tell_all(self, uid: str) -> None:
        for key in self._keys.get(uid, ()):
            gang = self._gangs[key]
            self.tell(gang)
            self.look_for_owner(gang)
            self._changed(gang)

    def tell(self, gang: Gang) -> None:
        """Copy the facts of the job to its gang."""
        gang.job = self._facts.get(gang.uid)
        gang.likeness = None
        gang.ended = gang.job.ended if gang.job is not None else ""
        if gang.job is not None and gang.job.since:
            gang.arrival = min(gang.arrival, gang.job.since) if gang.arrival else gang.job.since

    def look_for_owner(self, gang: Gang) -> None:
        """Update whether the owner of the gang's placement exists."""
        owners = gang.placement.metadata.owner_references if gang.placement is not None else ()
        gang.owner_missing = any(
            owner.uid not in self._facts if self._known and owner.kind == TRAINING_JOB else self._lost(owner)
            for owner in owners
        )
