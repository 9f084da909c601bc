"""Persistent volume claims of pods: a bound claim ties its pod to nodes, an unbound one makes it wait or refuses it.

If the class of a claim waits for its first consumer (volumeBindingMode WaitForFirstConsumer), the class's
allowedTopologies constrain the pod. The volume is provisioned when the pod has a node (see `volume_provisioning`).
Kubernetes: "Storage Classes".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from muster.kube.objects.affinity import NodeSelectorRequirement, NodeSelectorTerm
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.pod import Pod
from muster.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from muster.kube.objects.struct import KubeStruct

ClaimNeeds = tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...]
"""(claim name, node affinity terms of its volume), for each claim whose volume is tied to nodes."""


NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""Provisioner of classes whose volumes an operator creates."""


class TopologySelectorLabelRequirement(KubeStruct):
    """Requirement that the node's label has one of the values."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(KubeStruct):
    """Conjunction of requirements; an empty one matches nothing."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(KubeObject):
    """storage.k8s.io/v1 StorageClass: the fields that determine where and when a volume is provisioned."""

    RESOURCE: ClassVar[Resource] = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)

    volume_binding_mode: str = "Immediate"
    provisioner: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class ClaimState(msgspec.Struct, frozen=True):
    """State of a claim. With `found` False it does not exist.

    Attributes:
        waits_for_first_consumer: its volume is provisioned for its first pod's node; `by_hand`: by an operator.
        single_pod: only one pod may use it (access mode ReadWriteOncePod).
        terms: nodes that reach the volume, or for which it can be provisioned; None for all.
    """

    found: bool = False
    bound: bool = False
    waits_for_first_consumer: bool = False
    by_hand: bool = False
    single_pod: bool = False
    terms: tuple[NodeSelectorTerm, ...] | None = None


def claim_names(pod: Pod) -> tuple[str, ...]:
    """Return the names of the claims that the pod uses, including those of ephemeral volumes."""
    names = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(f"{pod.name}-{volume.name}")
    return tuple(names)


def claim_state(
    claim: PersistentVolumeClaim | None, volume: PersistentVolume | None, storage_class: StorageClass | None
) -> ClaimState:
    """Return the state of a claim from its volume if it is bound, else from its class."""
    if claim is None:
        return ClaimState()
    bound = claim.status.phase == "Bound" and bool(claim.spec.volume_name) and volume is not None
    waits = (
        not claim.spec.volume_name
        and storage_class is not None
        and storage_class.volume_binding_mode == "WaitForFirstConsumer"
    )
    terms = None
    if bound and volume is not None and volume.spec.node_affinity is not None:
        required = volume.spec.node_affinity.required
        terms = required.node_selector_terms if required is not None else None
    elif waits and storage_class is not None and storage_class.allowed_topologies:
        terms = tuple(map(_node_term, storage_class.allowed_topologies))
    return ClaimState(
        found=True,
        bound=bound,
        waits_for_first_consumer=waits,
        by_hand=waits and storage_class is not None and storage_class.provisioner == NO_PROVISIONER,
        single_pod="ReadWriteOncePod" in claim.spec.access_modes,
        terms=terms,
    )


def _node_term(term: TopologySelectorTerm) -> NodeSelectorTerm:
    rules = term.match_label_expressions
    return NodeSelectorTerm(
        match_expressions=tuple(NodeSelectorRequirement(key=r.key, operator="In", values=r.values) for r in rules)
    )


class VolumeVerdict(msgspec.Struct, frozen=True):
    """Result for a pod's claims: node constraints, or why it waits, or why it is refused."""

    needs: ClaimNeeds = ()
    waiting: str = ""
    refusal: str = ""


def judge(names: Iterable[str], claims: Mapping[str, ClaimState], namespace: str) -> VolumeVerdict:
    """Judge the claims of a pod. `claims` is keyed by `namespace/name`; a missing one is still being read."""
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
        if state.by_hand:
            return VolumeVerdict(
                refusal=f"persistentVolumeClaim {name} is unbound, of volumeBindingMode WaitForFirstConsumer and of a "
                "class without provisioner, which is not supported yet by schedulerName muster: bind it first"
            )
        if not state.bound and not state.waits_for_first_consumer:
            return VolumeVerdict(waiting=f"persistentVolumeClaim {name} is not bound")
        if state.terms is not None:
            needs.append((name, state.terms))
    return VolumeVerdict(needs=tuple(needs))
