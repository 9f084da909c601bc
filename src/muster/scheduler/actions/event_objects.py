"""Builds the object references for Events about gangs."""

from __future__ import annotations

from muster.kube.objects.core import ObjectReference
from muster.kube.objects.meta import OwnerReference
from muster.scheduler.gangs.gang import Gang


def reference(gang: Gang) -> ObjectReference | None:
    """Return the object that Events about the gang refer to: the owning job, else the first pod."""
    owner = gang.owner
    if owner is not None and not gang.single:
        return reference_to_owner(owner, gang.namespace)
    first = min(gang.pods.values(), key=lambda pod: (pod.slot, pod.name), default=None)
    if first is None:
        return None
    return ObjectReference(api_version="v1", kind="Pod", namespace=first.namespace, name=first.name, uid=first.uid)


def reference_to_owner(owner: OwnerReference, namespace: str) -> ObjectReference:
    """Return a reference to an owner in that namespace."""
    return ObjectReference(
        api_version=owner.api_version, kind=owner.kind, namespace=namespace, name=owner.name, uid=owner.uid
    )
