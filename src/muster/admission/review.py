"""AdmissionReview (admission.k8s.io/v1) as the API server sends it, and as it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from muster.kube.affinity import NodeAffinity, Toleration
from muster.kube.core import ConfigMap
from muster.kube.meta import OwnerReference
from muster.kube.struct import KubeStruct

JSON_PATCH_ADD, JSON_PATCH_REPLACE, JSON_PATCH_REMOVE = "add", "replace", "remove"


class NodeRules(KubeStruct):
    """spec.affinity, less what is about other pods."""

    node_affinity: NodeAffinity | None = None


class PodMeta(KubeStruct):
    """What is read of a pod's metadata."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class PodRules(KubeStruct):
    """What is read of a pod's spec: only what says where it may run."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: NodeRules | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduler_name: str = ""
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class NewPod(KubeStruct):
    """A pod that is about to be made."""

    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodRules = msgspec.field(default_factory=PodRules)


class PodRequest(KubeStruct):
    """A question about a pod."""

    uid: str
    namespace: str = ""
    object: NewPod = msgspec.field(default_factory=NewPod)


class PodReview(KubeStruct):
    """AdmissionReview with a question about a pod."""

    request: PodRequest


class ConfigMapRequest(KubeStruct):
    """A question about a ConfigMap."""

    uid: str
    object: ConfigMap = msgspec.field(default_factory=ConfigMap)


class ConfigMapReview(KubeStruct):
    """AdmissionReview with a question about a ConfigMap."""

    request: ConfigMapRequest


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any = msgspec.UNSET


def answer(uid: str, operations: Sequence[Operation] = (), *, warning: str = "") -> bytes:
    """Allow it, changed by `operations`; `warning` is shown to whoever asked."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = msgspec.json.encode(operations)
    if warning:
        response["warnings"] = [warning]
    return _review(response)


def refusal(uid: str, message: str) -> bytes:
    """Refuse it."""
    return _review({"uid": uid, "allowed": False, "status": {"code": 422, "reason": "Invalid", "message": message}})


def _review(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def pointer(*parts: str) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
