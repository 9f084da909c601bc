"""Persistent volumes and claims: only the fields that scheduling needs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.affinity import NodeSelector
from muster.kube.objects.container import QuantityValue, ResourceRequirements
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct
from muster.kube.objects.volume import HostPathVolumeSource


class VolumeNodeAffinity(KubeStruct):
    """Nodes a volume can be used on."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(KubeStruct):
    """A volume and its claim."""

    capacity: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    host_path: HostPathVolumeSource | None = None


class VolumePhase(KubeStruct):
    """`phase` is Pending, Available, Bound, Released, Failed or Lost."""

    phase: str = ""


class PersistentVolume(KubeObject):
    """core/v1 PersistentVolume."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)

    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    status: VolumePhase = msgspec.field(default_factory=VolumePhase)


class PersistentVolumeClaimSpec(KubeStruct):
    """The claimed volume; `volume_name` is set once bound."""

    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements | None = None
    storage_class_name: str | None = None
    volume_name: str = ""


class PersistentVolumeClaim(KubeObject):
    """core/v1 PersistentVolumeClaim."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")

    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    status: VolumePhase = msgspec.field(default_factory=VolumePhase)
