"""What is known of the objects that foreign pods belong to, and which kinds have to be followed."""

from __future__ import annotations

from muster.kube.meta import OwnerReference
from muster.scheduler.gangs.adapters import source_of
from muster.scheduler.gangs.adapters.membership import Workload, WorkloadRef


class Directory:
    """Workloads by name and by UID.

    Attributes:
        wanted: names of the adapters whose objects somebody asked for, in the order of asking.
        listed: adapters of which every object is known.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, None] = {}
        self.listed: set[str] = set()
        self._by_name: dict[tuple[str, str, str], Workload] = {}
        self._by_uid: dict[str, Workload] = {}

    def find(self, ref: WorkloadRef) -> Workload | None:
        """Return the object that is meant: the one of that UID, or of that name where the UID is not known."""
        self.wanted.setdefault(ref.source)
        return self._by_uid.get(ref.uid) if ref.uid else self._by_name.get((ref.source, ref.namespace, ref.name))

    def set(self, workload: Workload) -> None:
        """The object is there, or has changed."""
        ref = workload.ref
        self._by_name[ref.source, ref.namespace, ref.name] = workload
        self._by_uid[ref.uid] = workload

    def remove(self, ref: WorkloadRef) -> None:
        """The object is gone."""
        self._by_uid.pop(ref.uid, None)
        name = (ref.source, ref.namespace, ref.name)
        known = self._by_name.get(name)
        if known is not None and known.ref.uid == ref.uid:
            del self._by_name[name]

    def lost(self, owner: OwnerReference) -> bool:
        """Whether that object is known not to exist any more."""
        return source_of(owner) in self.listed and owner.uid not in self._by_uid
