"""What a pod asks for and what a node has, as integers: cpu in millicores, everything else in whole units.

Rules from the Kubernetes pages "Resource Management for Pods and Containers", "Sidecar Containers" (resource sharing
within containers) and "Pod Overhead".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.kube.container import QuantityValue, ResourceRequirements
from muster.kube.node import Node
from muster.kube.pod import PodSpec
from muster.kube.quantity import milli, to_int
from muster.scheduler.podwire import SchedulingPodSpec

Amounts = Mapping[str, int]

PODS = "pods"
CORE = frozenset({"cpu", "memory", "ephemeral-storage", PODS})
UNLIMITED = 1 << 62


def amount(resource: str, quantity: QuantityValue) -> int:
    """Return a quantity as an integer: cpu in millicores, other resources in units, rounded up."""
    return milli(quantity) if resource == "cpu" else to_int(quantity)


def allocatable(node: Node) -> dict[str, int]:
    """Return what pods may use on the node, sorted by name: status.allocatable; capacity where a node has only that."""
    source = node.status.allocatable or node.status.capacity
    return {resource: amount(resource, quantity) for resource, quantity in sorted(source.items())}


def pod_request(spec: PodSpec) -> dict[str, int]:
    """Return what the pod takes from its node, `pods: 1` included; resources of which it asks nothing are left out.

    Containers and sidecars add up; an init container needs its own and that of the sidecars started before it; the
    pod needs the larger of both, plus its overhead. A request on the pod itself goes before the sum.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        own = _container_request(container.resources)
        if container.restart_policy == "Always":
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            _raise(peak, _sum(sidecars, own))
    total = dict(sidecars)
    for container in spec.containers:
        _add(total, _container_request(container.resources))
    _raise(total, peak)
    if isinstance(spec, SchedulingPodSpec) and spec.resources is not None:
        total.update(_container_request(spec.resources))
    _add(total, {resource: amount(resource, quantity) for resource, quantity in spec.overhead.items()})
    total = {resource: value for resource, value in total.items() if value > 0}
    total[PODS] = 1
    return total


def times_fits(request: Amounts, free: Amounts) -> int:
    """Return how many such pods fit into `free`."""
    best = UNLIMITED
    for resource, wanted in request.items():
        best = min(best, free.get(resource, 0) // wanted)
        if best <= 0:
            return 0
    return best


def short_of(request: Amounts, free: Amounts) -> tuple[str, ...]:
    """Return the resources of which `free` has less than the pod asks for, extended resources first."""
    missing = [resource for resource, wanted in request.items() if free.get(resource, 0) < wanted]
    return tuple(sorted(missing, key=lambda resource: (resource in CORE, resource)))


def minus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return left - right; a resource that `left` does not have is left out."""
    return {resource: value - right.get(resource, 0) for resource, value in left.items()}


def plus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return left + right."""
    return _sum(left, right)


def largest(requests: Iterable[Amounts]) -> dict[str, int]:
    """Return the largest amount of each resource."""
    result: dict[str, int] = {}
    for request in requests:
        _raise(result, request)
    return result


def _container_request(resources: ResourceRequirements | None) -> dict[str, int]:
    """A limit without a request is the request (API server defaulting; repeated for servers that do not default)."""
    if resources is None:
        return {}
    return {resource: amount(resource, q) for resource, q in {**resources.limits, **resources.requests}.items()}


def _add(into: dict[str, int], other: Amounts) -> None:
    for resource, value in other.items():
        into[resource] = into.get(resource, 0) + value


def _sum(left: Amounts, right: Amounts) -> dict[str, int]:
    result = dict(left)
    _add(result, right)
    return result


def _raise(into: dict[str, int], other: Amounts) -> None:
    for resource, value in other.items():
        if into.get(resource, 0) < value:
            into[resource] = value
