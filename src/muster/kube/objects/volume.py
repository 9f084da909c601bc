"""Volumes of a pod: only the sources that the process kubelet and our templates use."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.kube.objects.struct import KubeStruct


class ObjectFieldSelector(KubeStruct):
    """Downward API: a field of the pod, such as `status.podIP`."""

    field_path: str
    api_version: str = ""


class ResourceFieldSelector(KubeStruct):
    """Downward API: a resource of a container, such as `limits.cpu`."""

    resource: str
    container_name: str = ""
    divisor: str | int = ""


class KeyToPath(KubeStruct):
    """Puts one key into one file."""

    key: str
    path: str
    mode: int | None = None


class ConfigMapVolumeSource(KubeStruct):
    """A ConfigMap as files; also the `configMap` of a projected volume."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool | None = None


class SecretVolumeSource(KubeStruct):
    """A Secret as files."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool | None = None


class SecretProjection(KubeStruct):
    """The `secret` of a projected volume."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class EmptyDirVolumeSource(KubeStruct):
    """A folder that lives as long as the pod; medium `Memory` is a tmpfs."""

    medium: str = ""


class HostPathVolumeSource(KubeStruct):
    """A path of the node."""

    path: str
    type: str | None = None


class DownwardAPIVolumeFile(KubeStruct):
    """One file whose content is a field of the pod."""

    path: str
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None


class DownwardAPIVolumeSource(KubeStruct):
    """Fields of the pod as files."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: int | None = None


class ServiceAccountTokenProjection(KubeStruct):
    """A token of the pod's service account, rotated by the kubelet."""

    path: str
    audience: str = ""
    expiration_seconds: int | None = None


class VolumeProjection(KubeStruct):
    """One source of a projected volume."""

    config_map: ConfigMapVolumeSource | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardAPIVolumeSource | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: ServiceAccountTokenProjection | None = None


class ProjectedVolumeSource(KubeStruct):
    """Several sources in one folder."""

    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None


class PersistentVolumeClaimVolumeSource(KubeStruct):
    """A claim in the pod's namespace."""

    claim_name: str
    read_only: bool = False


class Volume(KubeStruct):
    """A volume of a pod. Decoding drops sources that are not listed here; see `PodSpec`."""

    name: str
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = msgspec.field(default=None, name="downwardAPI")
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, Any] | None = None
    """Has a claim of its own, named `{pod}-{volume}` (Kubernetes: ephemeral volumes)."""


class VolumeMount(KubeStruct):
    """The place of a volume in a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
