"""Writes and reads the Deployment of a pool's balloons."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from muster.api.names import LABEL_BALLOON, LABEL_MANAGED_BY, MANAGED_BY, SCHEDULER_NAME
from muster.fleet.balloons.config import BalloonPool
from muster.fleet.balloons.snapshot import Known
from muster.kube.objects.apps import Deployment
from muster.kube.objects.struct import to_dict

PRIORITY_CLASS = "muster-balloon"
LABEL_BALLOON_POOL = "muster.dev/balloon-pool"
ANNOTATION_POOL = "muster.dev/balloon-pool"
"""Annotation of Deployments: their configuration as JSON. It applies while the ConfigMap is not valid."""
ANNOTATION_TEMPLATE = "muster.dev/balloon-template"
"""Annotation of Deployments: digest of the pod template. If this version of Muster computes another digest, it updates
the Deployment."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of pods: a ReplicaSet that shrinks deletes pods of lower cost first (Kubernetes: ReplicaSet)."""
GOES_FIRST = "-1000"
GRACE_S = 1
"""Grace period. With 0 s, the pod's object would be gone while its process still uses the device (Kubernetes: forced
deletion)."""

_WAIT = "import signal as s; n = {s.SIGTERM, s.SIGINT}; s.pthread_sigmask(s.SIG_BLOCK, n); s.sigwait(n)"
"""Ends at once on SIGTERM, for which the first process of a container has no default action."""


def deployment_name(pool: str) -> str:
    """Return the name of a pool's Deployment."""
    return f"muster-balloon-{pool}"


def manifest(pool: BalloonPool, replicas: int, namespace: str, own_image: str) -> dict[str, Any]:
    """Return the Deployment as a manifest. `own_image` is Muster's image."""
    labels = {LABEL_BALLOON: "true", LABEL_BALLOON_POOL: pool.name}
    template = _template(pool, labels, own_image)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": deployment_name(pool.name),
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY, LABEL_BALLOON_POOL: pool.name},
            "annotations": {
                ANNOTATION_POOL: msgspec.json.encode(pool).decode(),
                ANNOTATION_TEMPLATE: _digest(template),
            },
        },
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            # A node has room for one balloon: the old one is deleted first.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "template": template,
        },
    }


def known(deployment: Deployment, own_image: str) -> Known:
    """Read a Deployment."""
    try:
        pool = msgspec.json.decode(deployment.metadata.annotations.get(ANNOTATION_POOL, ""), type=BalloonPool)
    except msgspec.DecodeError:
        pool = None
    stale = pool is None
    if pool is not None:
        wanted = manifest(pool, 0, "", own_image)["metadata"]["annotations"][ANNOTATION_TEMPLATE]
        stale = deployment.metadata.annotations.get(ANNOTATION_TEMPLATE) != wanted
    replicas = deployment.spec.replicas if deployment.spec.replicas is not None else 1
    return Known(deployment.name, deployment.uid, replicas, pool, stale)


def _template(pool: BalloonPool, labels: dict[str, str], own_image: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "balloon",
        "image": pool.image or own_image,
        "resources": {"requests": dict(pool.resources), "limits": dict(pool.resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if not pool.image:
        container["command"] = ["python", "-c", _WAIT]
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "metadata": {"labels": labels},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "priorityClassName": PRIORITY_CLASS,
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": dict(pool.node_selector),
            "tolerations": [to_dict(toleration) for toleration in pool.tolerations],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "containers": [container],
        },
    }


def _digest(template: dict[str, Any]) -> str:
    encoded = msgspec.json.Encoder(order="deterministic").encode(template)
    return hashlib.sha256(encoded).hexdigest()[:16]
