"""Gangs of other controllers' workloads: combines pods with the size from their object, in any order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from muster.kube.objects.meta import OwnerReference
from muster.scheduler.gangs.adapters import SOURCES
from muster.scheduler.gangs.adapters.membership import (
    Membership,
    Role,
    Shape,
    Workload,
    WorkloadRef,
    gang_key,
    gang_name,
)
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.members import Roster, Standing
from muster.scheduler.gangs.owners import Directory


class ForeignGangs:
    """Maintains the rosters of these gangs. It is a part of `ClusterState`.

    If a pod refers to an unknown object by name only, it joins a gang without a UID, which waits.

    Args:
        gangs: all gangs, by key.
        join: adds a pod to its gang.
        refresh: finds the current member of a slot again.
        changed: marks a gang for planning.
    """

    def __init__(
        self,
        gangs: Mapping[str, Gang],
        *,
        join: Callable[[PodRecord, Membership], None],
        refresh: Callable[[Gang, int], None],
        changed: Callable[[Gang], None],
    ) -> None:
        self.directory = Directory()
        self._gangs = gangs
        self._join = join
        self._refresh = refresh
        self._changed = changed

    def resolve(self, member: Membership) -> Membership:
        """Return the membership with the UID of the pod's object, if known."""
        ref = member.workload
        assert ref is not None
        workload = self.directory.find(ref)
        if ref.uid or workload is None:
            return member
        ref = workload.ref
        return msgspec.structs.replace(
            member, key=gang_key(ref.namespace, member.name, ref.uid), uid=ref.uid, workload=ref
        )

    def adopt(self, gang: Gang) -> None:
        """Find the workload of a gang that is known only by its placement, from the gang's name."""
        source, _, name = gang.name.partition(".")
        if gang.roster is None and source in SOURCES and name:
            self._begin(gang, WorkloadRef(source, gang.namespace, name, gang.uid))
            self._shape(gang)

    def enrol(self, gang: Gang, record: PodRecord, member: Membership) -> None:
        """Add the pod without a slot. `seat` assigns it later: members or placement may not be known yet."""
        ref = member.workload
        assert ref is not None
        if gang.roster is None:
            self._begin(gang, ref)
        assert gang.roster is not None
        gang.roster.standing[record.uid] = Standing(record.name, member, "")
        if member.size and gang.roster.declared not in (0, member.size):
            record.labels_error = (
                f"pod {record.name} says its gang has {member.size} members, not {gang.roster.declared}"
            )
        elif member.size:
            gang.roster.declared = member.size
        if member.attempt > gang.size_attempt:
            gang.size_attempt = member.attempt
            for slot in list(gang.roster.done):  # a new attempt repeats work that succeeded in an earlier attempt
                self._refresh(gang, slot)
        if gang.owner is None and record.owner is not None and record.owner.uid == gang.uid:
            gang.owner = record.owner
        self._shape(gang)

    def _begin(self, gang: Gang, ref: WorkloadRef) -> None:
        gang.workload, gang.roster = ref, Roster()
        self.directory.wanted.setdefault(ref.source)

    def _shape(self, gang: Gang) -> None:
        """Apply the object's description; muster.dev/gang-size on the pods overrides it."""
        roster, ref = gang.roster, gang.workload
        assert roster is not None
        assert ref is not None
        workload = self.directory.find(ref) if ref.uid else None
        shape = workload.says.shape if workload is not None else None
        if roster.declared and ref.uid:
            shape = Shape({"": Role.exactly(roster.declared)})
        if workload is not None:
            roster.orphan = False
            gang.owner, gang.ended = workload.owner, workload.says.ended
        if shape is not None:
            for slot in roster.reshape(shape, gang.placed):
                self._refresh(gang, slot)
        gang.size = roster.size
        self._changed(gang)

    def seat(self, gang: Gang) -> None:
        """Assign slots to the gang's pods without one, if the number of members is known."""
        roster = gang.roster
        if roster is None or not roster.standing:
            return
        for uid, standing in roster.standing.items():
            standing.node = gang.pods[uid].node
        for uid, slot in roster.seat(gang.placed):
            gang.pods[uid].slot = slot
            gang.members_by_slot.setdefault(slot, {})[uid] = gang.pods[uid]
            self._refresh(gang, slot)
        gang.size = roster.size

    def note(self, gang: Gang, slot: int, member: PodRecord | None) -> None:
        """Record the live pod of a slot; refresh other slots if this changes their membership."""
        roster = gang.roster
        if roster is None:
            return
        pods = gang.members_by_slot[slot].values()
        done = member is None and any(pod.succeeded and pod.attempt >= gang.size_attempt for pod in pods)
        for other in roster.note(slot, live=member is not None, done=done):
            if other != slot:
                self._refresh(gang, other)
        gang.size = roster.size

    def counts(self, gang: Gang, slot: int, member: PodRecord) -> bool:
        """Return whether the slot's pod counts as current. An extra pod counts only after it is placed."""
        return bool(member.node) or slot in gang.placed or gang.roster is None or gang.roster.is_member(slot)

    def set(self, workload: Workload) -> None:
        """Add or update an object."""
        if self.directory.find(workload.ref) == workload:
            return
        self.directory.set(workload)
        ref = workload.ref
        unnamed = self._gangs.get(gang_key(ref.namespace, gang_name(ref), ""))
        if unnamed is not None and unnamed.roster is not None:
            for uid, standing in list(unnamed.roster.standing.items()):
                record = unnamed.pods.pop(uid)
                record.gang = gang_key(ref.namespace, gang_name(ref), ref.uid)
                self._join(record, standing.member)
            unnamed.roster.standing.clear()
            self._changed(unnamed)
            if ref.uid and (named := self._gang_of(ref)) is not None:
                named.user, named.image = unnamed.user, unnamed.image
        gang = self._gang_of(ref)
        if gang is not None:
            self._shape(gang)

    def remove(self, ref: WorkloadRef) -> Gang | None:
        """Remove an object; return its gang, which stays as it is."""
        self.directory.remove(ref)
        gang = self._gang_of(ref)
        if gang is not None:
            self._orphan(gang)
        return gang

    def _orphan(self, gang: Gang) -> None:
        """Remove the owner from the placement, because Kubernetes would delete the placement with its owner.

        Pods continue to run and binds complete.
        """
        assert gang.roster is not None
        gang.roster.orphan, gang.owner = True, None

    def listed(self, source: str) -> list[Gang]:
        """Record that all objects of the adapter are listed; return the gangs that come from it."""
        self.directory.listed.add(source)
        gangs = [gang for gang in self._gangs.values() if gang.workload is not None and gang.workload.source == source]
        for gang in gangs:
            if gang.uid and gang.workload is not None and self.directory.find(gang.workload) is None:
                self._orphan(gang)
        return gangs

    def lost(self, owner: OwnerReference) -> bool:
        """Return whether the object is known to be deleted."""
        return self.directory.lost(owner)

    def _gang_of(self, ref: WorkloadRef) -> Gang | None:
        gang = self._gangs.get(gang_key(ref.namespace, gang_name(ref), ref.uid))
        return gang if gang is not None and gang.roster is not None else None
