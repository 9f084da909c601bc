"""Requests of a pod and resources of a node, as integers: cpu in millicores, everything else in whole units.

Rules from the Kubernetes pages "Resource Management for Pods and Containers", "Sidecar Containers" (resource sharing
within containers) and "Pod Overhead".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from muster.kube.objects.container import QuantityValue, ResourceRequirements
from muster.kube.objects.node import Node
from muster.kube.objects.quantity import milli, to_int

Amounts = Mapping[str, int]

PODS = "pods"


class AskingContainer(Protocol):
    """The part of a container that requests resources."""

    @property
    def resources(self) -> ResourceRequirements | None:
        """Requests and limits."""

    @property
    def restart_policy(self) -> str | None:
        """Always makes an init container a sidecar."""


class AskingPod(Protocol):
    """The part of a pod's spec that requests resources. Its field `resources` may hold requests of the whole pod."""

    @property
    def init_containers(self) -> Sequence[AskingContainer]:
        """In the order in which they start."""

    @property
    def containers(self) -> Sequence[AskingContainer]:
        """The containers that run at the same time."""

    @property
    def overhead(self) -> Mapping[str, QuantityValue]:
        """Resources that the container runtime uses itself."""


def amount(resource: str, quantity: QuantityValue) -> int:
    """Return a quantity as an integer: cpu in millicores, other resources in units, rounded up."""
    return milli(quantity) if resource == "cpu" else to_int(quantity)


def allocatable(node: Node) -> dict[str, int]:
    """Return the resources for pods on the node, sorted by name: status.allocatable, or capacity if that is missing."""
    source = node.status.allocatable or node.status.capacity
    return {resource: amount(resource, quantity) for resource, quantity in sorted(source.items())}


def pod_request(spec: AskingPod) -> dict[str, int]:
    """Return the pod's request on its node, including `pods: 1`; resources it does not request are left out.

    Requests of containers and sidecars add up. An init container needs its own request and those of the sidecars
    started before it. The pod needs the larger of both, plus its overhead. A request on the pod itself overrides the
    sum.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        own = _request(container.resources)
        if container.restart_policy == "Always":
            _add(sidecars, own)
            raise_to(peak, sidecars)
        else:
            raise_to(peak, plus(sidecars, own))
    total = dict(sidecars)
    for container in spec.containers:
        _add(total, _request(container.resources))
    raise_to(total, peak)
    total.update(_request(getattr(spec, "resources", None)))
    _add(total, {resource: amount(resource, quantity) for resource, quantity in spec.overhead.items()})
    total = {resource: value for resource, value in total.items() if value > 0}
    total[PODS] = 1
    return total


def plus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return left + right."""
    result = dict(left)
    _add(result, right)
    return result


def _request(resources: ResourceRequirements | None) -> dict[str, int]:
    """Return the requests. A limit without a request counts as the request, as the API server sets it."""
    if resources is None:
        return {}
    return {resource: amount(resource, q) for resource, q in {**resources.limits, **resources.requests}.items()}


def _add(into: dict[str, int], other: Amounts) -> None:
    for resource, value in other.items():
        into[resource] = into.get(resource, 0) + value


def raise_to(into: dict[str, int], other: Amounts) -> None:
    """Raise each resource to at least the amount in `other`."""
    for resource, value in other.items():
        if into.get(resource, 0) < value:
            into[resource] = value
