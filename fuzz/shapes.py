"""Shapes of jobs that a share of the runs has: gangs of others, rules about pods, zones to keep them."""

from __future__ import annotations

from typing import Any

from muster.kube.objects.meta import Resource
from muster.kube.objects.workloads import CoschedulingPodGroup

NAMESPACE = "default"
LABEL_GROUP = "scheduling.x-k8s.io/pod-group"
POD_GROUPS = CoschedulingPodGroup.RESOURCE.path(NAMESPACE)
OF_OTHERS = "pod-group."
"""What names of their gangs and Placements begin with."""
LABEL_APART = "apart"
LABEL_ZONE = "topology.kubernetes.io/zone"
ZONES = 3
APART: dict[str, Any] = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": LABEL_ZONE, "labelSelector": {"matchLabels": {LABEL_APART: "yes"}}}
        ]
    }
}
"""The affinity of pods that must all be in different zones."""


def kind_of(resource: Resource) -> dict[str, Any]:
    """A kind that takes whatever it is given."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def pod_group(name: str, size: int) -> dict[str, Any]:
    """A group all of whose pods start together."""
    resource = CoschedulingPodGroup.RESOURCE
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": resource.kind,
        "metadata": {"name": name},
        "spec": {"minMember": size},
    }


def zone(number: int) -> str:
    """The zone of a node by its number."""
    return f"zone-{number % ZONES}"
