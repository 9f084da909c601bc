"""Persistent volume claims of pods: bound ones tie a pod to nodes, unbound ones make it wait or refuse it.

Binding a claim to a volume while placing (volumeBindingMode WaitForFirstConsumer) is not supported: such a pod is
refused by name (Kubernetes: "Storage Classes", volume binding mode).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from muster.kube.affinity import NodeSelectorTerm
from muster.kube.meta import KubeObject, Resource
from muster.kube.pod import Pod
from muster.kube.storage import PersistentVolume, PersistentVolumeClaim
from muster.scheduler.podwire import SchedulingVolume

ClaimNeeds = tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...]
"""(claim name, node affinity terms of its volume), for each claim whose volume is tied to nodes."""


class StorageClass(KubeObject):
    """storage.k8s.io/v1 StorageClass, as far as it decides whether a claim waits for its first pod."""

    RESOURCE: ClassVar[Resource] = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)

    volume_binding_mode: str = "Immediate"


class ClaimState(msgspec.Struct, frozen=True):
    """What is known of a claim. `found` False: it does not exist."""

    found: bool = False
    bound: bool = False
    waits_for_first_consumer: bool = False
    single_pod: bool = False
    terms: tuple[NodeSelectorTerm, ...] | None = None


def claim_names(pod: Pod) -> tuple[str, ...]:
    """Return the names of the claims the pod uses, those made for its ephemeral volumes included."""
    names = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif isinstance(volume, SchedulingVolume) and volume.ephemeral is not None:
            names.append(f"{pod.name}-{volume.name}")
    return tuple(names)


def claim_state(
    claim: PersistentVolumeClaim | None, volume: PersistentVolume | None, storage_class: StorageClass | None
) -> ClaimState:
    """Sum up a claim, its volume where bound, and its class where not."""
    if claim is None:
        return ClaimState()
    bound = claim.status.phase == "Bound" and bool(claim.spec.volume_name) and volume is not None
    affinity = volume.spec.node_affinity if bound and volume else None
    return ClaimState(
        found=True,
        bound=bound,
        waits_for_first_consumer=(
            not claim.spec.volume_name
            and storage_class is not None
            and storage_class.volume_binding_mode == "WaitForFirstConsumer"
        ),
        single_pod="ReadWriteOncePod" in claim.spec.access_modes,
        terms=affinity.required.node_selector_terms if affinity and affinity.required else None,
    )


class VolumeVerdict(msgspec.Struct, frozen=True):
    """What a pod's claims come to: node constraints, or why it waits, or why it is refused."""

    needs: ClaimNeeds = ()
    waiting: str = ""
    refusal: str = ""


def judge(names: Iterable[str], claims: Mapping[str, ClaimState], namespace: str) -> VolumeVerdict:
    """Judge the claims of a pod; `claims` is keyed by `namespace/name`; one not in it is still being looked up."""
    needs = []
    for name in names:
        state = claims.get(f"{namespace}/{name}")
        if state is None or not state.found:
            what = "is being looked up" if state is None else "does not exist"
            return VolumeVerdict(waiting=f"persistentVolumeClaim {name} {what}")
        if state.single_pod:
            return VolumeVerdict(
                refusal=f"access mode ReadWriteOncePod of persistentVolumeClaim {name} is not supported yet by "
                "schedulerName muster"
            )
        if state.waits_for_first_consumer:
            return VolumeVerdict(
                refusal=f"persistentVolumeClaim {name} is unbound and of volumeBindingMode WaitForFirstConsumer, which "
                "is not supported yet by schedulerName muster: bind it first, or use volumeBindingMode Immediate"
            )
        if not state.bound:
            return VolumeVerdict(waiting=f"persistentVolumeClaim {name} is not bound")
        if state.terms is not None:
            needs.append((name, state.terms))
    return VolumeVerdict(needs=tuple(needs))
