"""Reads Placement objects and builds their next version. Pure; the controller writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import msgspec

from muster.api.names import LABEL_GANG, LABEL_MANAGED_BY, MANAGED_BY, placement_name
from muster.api.placement import (
    Backfill,
    GivenUpSlot,
    LeavingReason,
    PlacedSlot,
    Placement,
    PlacementSpec,
    PlacementStatus,
)
from muster.kube.objects.meta import ObjectMeta, OwnerReference, is_later
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.membership import Membership, gang_key, pod_key
from muster.scheduler.gangs.gang import Gang

TRAINING_JOB = "TrainingJob"
GIVEN_UP = ("Released", "Preempting")
LABEL_MAX = 63
"""Maximum length of a label value; foreign names may be longer (Kubernetes: labels and selectors)."""
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(now: float) -> datetime:
    """Return the timestamp in UTC for seconds since the epoch."""
    return datetime.fromtimestamp(now, UTC)


def is_leaving(gang: Gang) -> bool:
    """Return whether the gang was asked to leave."""
    return gang.placement is not None and gang.placement.status.phase == "Preempting"


def gang_of(placement: Placement) -> Membership:
    """Return the gang of a placement. A single pod has one, `pod.NAME`, while its victims leave."""
    spec, namespace = placement.spec, placement.namespace
    for owner in placement.metadata.owner_references:
        if owner.kind == Pod.RESOURCE.kind and owner.uid == spec.gang_uid:
            return Membership(pod_key(namespace, owner.name, owner.uid), owner.name, single=True)
    size = spec.size + len(spec.given_up)
    return Membership(gang_key(namespace, spec.gang, spec.gang_uid), spec.gang, spec.gang_uid, size)


def _named(gang: Gang) -> tuple[str, str, OwnerReference | None]:
    """Return the gang's name, UID and owner as its placement has them."""
    if not gang.single:
        return gang.name, gang.uid, gang.owner
    (pod,) = gang.pods.values()
    owner = OwnerReference(api_version=Pod.RESOURCE.api_version, kind=Pod.RESOURCE.kind, name=pod.name, uid=pod.uid)
    return f"pod.{pod.name}", pod.uid, owner


def placed_slots(placement: Placement | None) -> dict[int, tuple[str, str]]:
    """Return slot -> (node, node UID) of the slots that the placement holds; none after their release."""
    if placement is None or placement.status.phase in GIVEN_UP:
        return {}
    return {slot.slot: (slot.node, slot.node_uid) for slot in placement.spec.slots}


def given_up_slots(placement: Placement | None) -> dict[int, int]:
    """Return slot -> attempt of the slots that the gang continues without."""
    if placement is None or placement.status.phase in GIVEN_UP:
        return {}
    return {each.slot: each.attempt for each in placement.spec.given_up}


def holds_as(old: Placement, new: Placement) -> bool:
    """Return whether both versions certainly have the same slots, because only the status was written."""
    return new.spec is old.spec and (new.status.phase in GIVEN_UP) == (old.status.phase in GIVEN_UP)


def started_at(placement: Placement, bind_deadline_s: float) -> datetime:
    """Return when the present revision was written, computed from its deadline."""
    deadline = placement.spec.bind_deadline
    return deadline - timedelta(seconds=bind_deadline_s) if deadline is not None else _LONG_AGO


def is_open(placement: Placement, bind_deadline_s: float) -> bool:
    """Return whether the present revision still has to be bound.

    A write of spec keeps status, so a plan that changed after it was Bound still has phase Bound. Therefore the test
    is whether it was Bound after this revision was written. `planned` and `bound_status` keep these times in order,
    whatever the clock does.

    If the bind deadline was changed before a restart, the result may be wrong, which is harmless. An open plan that
    counts as bound gets a new revision. A bound plan that counts as open is marked Bound again.
    """
    status = placement.status
    if status.phase in GIVEN_UP:
        return False
    if status.phase == "Open" or status.bound_time is None:
        return True
    return status.bound_time < started_at(placement, bind_deadline_s)


def bound_status(placement: Placement, now: float, bind_deadline_s: float) -> PlacementStatus:
    """Return the status that marks the plan's present revision as bound."""
    return PlacementStatus(phase="Bound", bound_time=max(timestamp(now), started_at(placement, bind_deadline_s)))


def planned(
    gang: Gang,
    nodes: Mapping[int, tuple[str, str]],
    now: float,
    bind_deadline_s: float,
    *,
    keep_deadline: bool = False,
    preempting: bool = False,
    given_up: Mapping[int, int] = MappingProxyType({}),
    backfill: Backfill | None = None,
) -> Placement:
    """Return the gang's next Placement: `nodes` is slot -> (node, node UID), `given_up` slot -> attempt.

    An existing one is replaced under its resourceVersion. `keep_deadline` repairs an open plan without extending its
    deadline. `preempting` means that victims have to leave its nodes before that deadline. `backfill` is recorded in
    a first plan; later plans keep what the first one says.
    """
    old = gang.placement
    start = timestamp(now)
    if old is not None and old.status.bound_time is not None:
        start = max(start, old.status.bound_time + timedelta(microseconds=1))
    deadline = start + timedelta(seconds=bind_deadline_s)
    if old is not None and keep_deadline and old.spec.bind_deadline is not None:
        deadline = old.spec.bind_deadline
    name, uid, owner = _named(gang)
    spec = PlacementSpec(
        gang=name,
        gang_uid=uid,
        size=len(nodes) if gang.elastic else gang.size - len(given_up),
        attempt=old.spec.attempt + 1 if old is not None else 0,
        slots=tuple([PlacedSlot(slot=slot, node=node, node_uid=uid) for slot, (node, uid) in sorted(nodes.items())]),
        given_up=tuple(GivenUpSlot(slot=slot, attempt=attempt) for slot, attempt in sorted(given_up.items())),
        bind_deadline=deadline,
        preempting=preempting,
        backfill=old.spec.backfill if old is not None else backfill,
    )
    if old is not None:
        return msgspec.structs.replace(old, spec=spec)
    return Placement(
        metadata=ObjectMeta(
            name=placement_name(name),
            namespace=gang.namespace,
            labels={LABEL_MANAGED_BY: MANAGED_BY, **({LABEL_GANG: name} if len(name) <= LABEL_MAX else {})},
            owner_references=(msgspec.structs.replace(owner, block_owner_deletion=None),) if owner is not None else (),
        ),
        spec=spec,
    )


def leaving_status(placement: Placement, now: float, reason: LeavingReason, message: str) -> PlacementStatus:
    """Return the status that asks a gang to leave its nodes."""
    return PlacementStatus(
        phase="Preempting",
        bound_time=placement.status.bound_time,
        preempting_time=timestamp(now),
        reason=reason,
        message=message,
    )


def staying_status(placement: Placement) -> PlacementStatus:
    """Return the previous status, for a gang that was asked to leave but stays."""
    return PlacementStatus(phase="Bound", bound_time=placement.status.bound_time)


def with_status(placement: Placement, status: PlacementStatus) -> Placement:
    """Return the placement with another status."""
    return msgspec.structs.replace(placement, status=status)


def newer(left: Placement, right: Placement) -> Placement:
    """Return the later of two versions of an object."""
    return left if is_later(left, right) else right
