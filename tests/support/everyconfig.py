"""Names, configuration and objects of the cluster of tests/support/everymetric.py."""

from __future__ import annotations

import os
from typing import Any, Final

import yaml

from muster.admission.trust import CONFIGURATION, MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from muster.api.names import LABEL_TEAM
from muster.fleet.balloons.deployment import PRIORITY_CLASS as BALLOON_CLASS
from muster.fleet.preflight.testpod import PRIORITY_CLASS as PREFLIGHT_CLASS
from muster.kube.objects.apps import Deployment
from tests.support.apiserver import Api
from tests.support.namespaces import CRDS
from tests.support.waiting import LONG_TIMEOUT_S, eventually
from tests.support.workloads import crd

Json = dict[str, Any]

SYSTEM: Final = "muster-system"
JOBS: Final = "red"
"""Namespace of training jobs, whose team has the same name."""
JOBS_PATH: Final = f"/apis/muster.dev/v1alpha1/namespaces/{JOBS}/trainingjobs"
MERGE: Final = "application/merge-patch+json"
GPUS: Final = 2
UPLINK: Final[Json] = {
    "enabled": True,
    "budget": {"in": "400M", "out": "100M"},
    "staticShare": {"in": "1M", "out": "1M"},
    "floor": {"in": "100k", "out": "100k"},
    "teams": {"red": 3, "blue": 1},
}
CONFIGS: Final[dict[str, tuple[str, Json]]] = {
    "muster-teams": (
        "teams.yaml",
        {"allocations": [{"nodeSelector": {"role": "worker"}, "team": "red", "amount": 3}]},
    ),
    "muster-balloons": (
        "balloons.yaml",
        {"pools": [{"name": "spare", "nodeSelector": {"role": "late"}, "replicas": 1, "resources": {"cpu": 4}}]},
    ),
    "muster-joins": ("joins.yaml", {"periodSeconds": 1, "nodeSelector": {"role": "late"}}),
    "muster-scaling": (
        "scaling.yaml",
        {
            "pools": [
                {
                    "name": "cloud",
                    "provider": "external",
                    "max": 2,
                    "pollSeconds": 1,
                    "template": {"labels": {"role": "cloud"}, "capacity": {"cpu": 8, "memory": "32Gi"}},
                }
            ]
        },
    ),
    "muster-health": (
        "remediation.yaml",
        {
            "mode": "act",
            "breaker": {"share": "100%"},
            "shared": {"nodes": 0},
            "quarantined": {"all": "100%", "pool": "100%", "team": "100%"},
        },
    ),
    "muster-preflight": (
        "preflight.yaml",
        {
            "runAsUser": os.geteuid(),
            "backend": f"cpu:{GPUS}",
            "resources": {"cpu": "100m", "memory": "64Mi"},
            "retests": {"atOnce": 0},
        },
    ),
    "muster-network": ("network.yaml", {"uplink": UPLINK}),
}
"""Per ConfigMap its key and its content."""


def create_objects(api: Api, *, real: bool) -> None:
    """Create what an administrator and the chart create before Muster starts.

    The embedded API server serves neither webhooks nor Deployments; here it gets kinds for them.
    """
    kinds = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    webhooks = [crd(kind.RESOURCE) for kind in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration)]
    for kind in webhooks:
        kind["spec"]["scope"] = "Cluster"
    for kind in kinds if real else (*kinds, *webhooks, crd(Deployment.RESOURCE)):
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind)
    for name in (SYSTEM, JOBS, "shadow"):
        meta: Json = {"name": name, "labels": {LABEL_TEAM: name} if name == JOBS else {}}
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    for name in (PREFLIGHT_CLASS, BALLOON_CLASS):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {**kind, "value": -5})
    for name, (_, content) in CONFIGS.items():
        configure(api, name, content)
    eventually("jobs are served", lambda: api.send("GET", JOBS_PATH)[0] == 200, LONG_TIMEOUT_S)
    for each in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
        resource = each.RESOURCE
        body = {"kind": resource.kind, "metadata": {"name": CONFIGURATION}, "webhooks": []}
        api.create(resource.path(), {"apiVersion": f"{resource.group}/{resource.version}", **body})


def configure(api: Api, name: str, content: Json | str) -> None:
    """Write one of the ConfigMaps."""
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps"
    patch = {"data": {CONFIGS[name][0]: text}}
    code, _, _ = api.send("PATCH", f"{path}/{name}", patch, content_type=MERGE)
    if code == 404:
        api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **patch})


def token(api: Api, account: str, **spec: Any) -> str:
    """A token of a service account of Muster's namespace."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made: str = api.create(path, request)["status"]["token"]
    return made
