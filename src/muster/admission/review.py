"""The AdmissionReview request (admission.k8s.io/v1) and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from muster.kube.objects.affinity import NodeAffinity, Toleration
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.struct import KubeStruct

JSON_PATCH_ADD, JSON_PATCH_REPLACE, JSON_PATCH_REMOVE = "add", "replace", "remove"


class NodeRules(KubeStruct):
    """spec.affinity without the parts about other pods."""

    node_affinity: NodeAffinity | None = None


class PodMeta(KubeStruct):
    """The metadata fields of a pod that are read."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class PodRules(KubeStruct):
    """The spec fields of a pod that are read: only those that decide where it may run."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: NodeRules | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduler_name: str = ""
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class NewPod(KubeStruct):
    """A pod to be created."""

    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodRules = msgspec.field(default_factory=PodRules)


class PodRequest(KubeStruct):
    """A request about a pod."""

    uid: str
    namespace: str = ""
    object: NewPod = msgspec.field(default_factory=NewPod)


class PodReview(KubeStruct):
    """An AdmissionReview of a pod."""

    request: PodRequest


class ConfigMapRequest(KubeStruct):
    """A request about a ConfigMap."""

    uid: str
    object: ConfigMap = msgspec.field(default_factory=ConfigMap)


class ConfigMapReview(KubeStruct):
    """An AdmissionReview of a ConfigMap."""

    request: ConfigMapRequest


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any = msgspec.UNSET


def answer(uid: str, operations: Sequence[Operation] = (), *, warning: str = "") -> bytes:
    """Return an answer that allows the request with `operations`. The client sees `warning`."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = msgspec.json.encode(operations)
    if warning:
        response["warnings"] = [warning]
    return _review(response)


def refusal(uid: str, message: str) -> bytes:
    """Return an answer that refuses the request."""
    return _review({"uid": uid, "allowed": False, "status": {"code": 422, "reason": "Invalid", "message": message}})


def _review(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def pointer(*parts: str) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
