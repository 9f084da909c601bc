"""The downward API: fields of a pod and resources of its containers, as text.

Source: https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from muster.kube.objects.container import Container
from muster.kube.objects.pod import Pod
from muster.kube.objects.quantity import milli
from muster.kube.objects.volume import ObjectFieldSelector, ResourceFieldSelector

_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class UnknownField(Exception):
    """The downward API has no such field."""


@dataclasses.dataclass(frozen=True)
class PodFacts:
    """Facts about a pod for the downward API that the object itself does not hold.

    Attributes:
        pod: the object.
        pod_ip: its address.
        host_ip: its node's address.
        allocatable: the node's allocatable resources, the default of limits.
    """

    pod: Pod
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]

    def field(self, reference: ObjectFieldSelector) -> str:
        """The value of a field; raises UnknownField."""
        path = reference.field_path
        meta = self.pod.metadata
        if match := _SUBSCRIPT.match(path):
            values = meta.labels if match.group(1) == "labels" else meta.annotations
            return values.get(match.group(2), "")
        simple = {
            "metadata.name": meta.name,
            "metadata.namespace": meta.namespace,
            "metadata.uid": meta.uid,
            "metadata.labels": _lines(meta.labels),
            "metadata.annotations": _lines(meta.annotations),
            "spec.nodeName": self.pod.spec.node_name,
            "spec.serviceAccountName": self.pod.spec.service_account_name,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
        }
        if path not in simple:
            raise UnknownField(f"unsupported fieldPath: {path}")
        return simple[path]

    def resource(self, reference: ResourceFieldSelector, container: Container | None = None) -> str:
        """The value of a resource in units of the reference's divisor, rounded up; raises UnknownField."""
        if reference.container_name:
            everyone = (*self.pod.spec.init_containers, *self.pod.spec.containers)
            container = next((each for each in everyone if each.name == reference.container_name), None)
        if container is None:
            raise UnknownField(f"container {reference.container_name!r} not found")
        which, _, resource = reference.resource.partition(".")
        if which not in ("limits", "requests") or not resource:
            raise UnknownField(f"unsupported container resource: {reference.resource}")
        given = container.resources
        limit = given.limits.get(resource) if given else None
        value = limit if which == "limits" else (given.requests.get(resource, limit) if given else None)
        if value is None:
            value = self.allocatable.get(resource, "0") if which == "limits" else "0"
        divisor = milli(reference.divisor) if reference.divisor not in ("", 0, "0") else 1000
        return str(-(-milli(value) // divisor))


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={json.dumps(values[name], ensure_ascii=False)}" for name in sorted(values))
