"""Caches the workload objects of pods that do not belong to TrainingJobs, and records which kinds need informers."""

from __future__ import annotations

from muster.kube.objects.meta import OwnerReference
from muster.scheduler.gangs.adapters import source_of
from muster.scheduler.gangs.adapters.membership import Workload, WorkloadRef


class Directory:
    """Workloads by name and by UID.

    Attributes:
        wanted: adapters of the objects that `find` was asked for, in the order of the first calls. Their kinds need
            informers.
        listed: adapters whose objects have all been listed.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, None] = {}
        self.listed: set[str] = set()
        self._by_name: dict[tuple[str, str, str], Workload] = {}
        self._by_uid: dict[str, Workload] = {}

    def find(self, ref: WorkloadRef) -> Workload | None:
        """Return the object with the reference's UID. If the reference has no UID, return the object with its name."""
        self.wanted.setdefault(ref.source)
        return self._by_uid.get(ref.uid) if ref.uid else self._by_name.get((ref.source, ref.namespace, ref.name))

    def set(self, workload: Workload) -> None:
        """Add or update an object."""
        ref = workload.ref
        self._by_name[ref.source, ref.namespace, ref.name] = workload
        self._by_uid[ref.uid] = workload

    def remove(self, ref: WorkloadRef) -> None:
        """Remove an object."""
        self._by_uid.pop(ref.uid, None)
        name = (ref.source, ref.namespace, ref.name)
        known = self._by_name.get(name)
        if known is not None and known.ref.uid == ref.uid:
            del self._by_name[name]

    def lost(self, owner: OwnerReference) -> bool:
        """Return whether the object is known to be deleted."""
        return source_of(owner) in self.listed and owner.uid not in self._by_uid
