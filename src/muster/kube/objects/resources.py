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
    """A container, as far as it asks for resources."""

    @property
    def resources(self) -> ResourceRequirements | None:
        """Requests and limits."""

    @property
    def restart_policy(self) -> str | None:
        """Always makes an init container a sidecar."""


class AskingPod(Protocol):
    """A pod's spec, as far as it asks for resources; also for the whole pod where it has a field `resources`."""

    @property
    def init_containers(self) -> Sequence[AskingContainer]:
        """In the order in which they start."""

    @property
    def containers(self) -> Sequence[AskingContainer]:
        """All that run side by side."""

    @property
    def overhead(self) -> Mapping[str, QuantityValue]:
        """Resources that the runtime takes beside the containers."""


def amount(resource: str, quantity: QuantityValue) -> int:
    """Return a quantity as an integer: cpu in millicores, other resources in units, rounded up."""
    return milli(quantity) if resource == "cpu" else to_int(quantity)


def allocatable(node: Node) -> dict[str, int]:
    """Return what pods may use on the node, sorted by name: status.allocatable; capacity where a node has only that."""
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
    """A limit without a request is the request (API server defaulting; repeated for servers that do not default)."""
    if resources is None:
        return {}
    return {resource: amount(resource, q) for resource, q in {**resources.limits, **resources.requests}.items()}


def _add(into: dict[str, int], other: Amounts) -> None:
    for resource, value in other.items():
        into[resource] = into.get(resource, 0) + value


def raise_to(into: dict[str, int], other: Amounts) -> None:
    """Make each resource at least as much as in `other`."""
    for resource, value in other.items():
        if into.get(resource, 0) < value:
            into[resource] = value
