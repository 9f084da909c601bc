"""Memberships from Muster's own labels, and of pods without a gang."""

from __future__ import annotations

from muster.api.names import ANNOTATION_ATTEMPT, ANNOTATION_GANG_SIZE, ANNOTATION_GANG_UID, LABEL_GANG, LABEL_SLOT
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.membership import Membership, gang_key, number, pod_key, size_error


def by_label(pod: Pod) -> Membership | None:
    """Return the membership from muster.dev/gang, muster.dev/slot and muster.dev/gang-size; None without a gang."""
    meta = pod.metadata
    name = meta.labels.get(LABEL_GANG)
    if name is None:
        return None
    uid = meta.annotations.get(ANNOTATION_GANG_UID, "")
    size_text = meta.annotations.get(ANNOTATION_GANG_SIZE, "")
    slot_text = meta.labels.get(LABEL_SLOT, "")
    size, slot = number(size_text), number(slot_text)
    error = size_error(pod, size_text)
    if not error and (slot is None or slot >= (size or 1)):
        error = f"label {LABEL_SLOT} of pod {pod.name} is {slot_text!r}; set it to a number from 0 to {(size or 1) - 1}"
    return Membership(
        key=gang_key(meta.namespace, name, uid),
        name=name,
        uid=uid,
        size=size or 1,
        slot=slot or 0,
        attempt=number(meta.annotations.get(ANNOTATION_ATTEMPT, "")) or 0,
        error=error,
    )


def alone(pod: Pod) -> Membership:
    """Return the membership of a pod without a gang: a gang of one."""
    return Membership(key=pod_key(pod.namespace, pod.name, pod.uid), name=pod.name, single=True)
