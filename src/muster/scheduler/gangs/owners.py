"""Known objects that own foreign pods, and the kinds that need informers."""

from __future__ import annotations

from muster.kube.objects.meta import OwnerReference
from muster.scheduler.gangs.adapters import source_of
from muster.scheduler.gangs.adapters.membership import Workload, WorkloadRef


class Directory:
    """Workloads by name and by UID.

    Attributes:
        wanted: names of the adapters that were queried, in the order of the queries.
        listed: adapters whose objects have all been listed.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, None] = {}
        self.listed: set[str] = set()
        self._by_name: dict[tuple[str, str, str], Workload] = {}
        self._by_uid: dict[str, Workload] = {}

    def find(self, ref: WorkloadRef) -> Workload | None:
        """Return the object with that UID, or with that name if the UID is unknown."""
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
