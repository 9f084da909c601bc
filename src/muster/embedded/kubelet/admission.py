"""Whether a node takes a pod that was bound to it: the checks the kubelet itself makes. Pure.

Binding never checks capacity, so these do (pkg/kubelet/lifecycle/predicate.go; the reasons and messages are those).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from muster.kube.node import Node
from muster.kube.pod import Pod, PodSpec
from muster.kube.quantity import milli, to_int
from muster.kube.selectors import pod_fits_node_selection
from muster.kube.taints import find_untolerated_taint

_HOLD_NOTHING = ("Succeeded", "Failed")


@dataclasses.dataclass(frozen=True)
class Rejection:
    """Why a pod is not taken: becomes the reason and message of its Failed status."""

    reason: str
    message: str


def admit(pod: Pod, node: Node, others: Iterable[Pod]) -> Rejection | None:
    """Why `node`, which already runs `others`, does not take `pod`; None where it does."""
    others = [other for other in others if other.status.phase not in _HOLD_NOTHING]
    capacity = node.status.allocatable
    pods = to_int(capacity.get("pods", 0))
    if len(others) + 1 > pods:
        return _out_of("pods", 1, len(others), pods)
    used: dict[str, int] = {}
    for other in others:
        for resource, amount in requests(other.spec).items():
            used[resource] = used.get(resource, 0) + amount
    for resource, amount in requests(pod.spec).items():
        known = resource in capacity
        if amount and (known or resource in ("cpu", "memory", "ephemeral-storage")):
            have = _amount(resource, capacity.get(resource, 0))
            if amount > have - used.get(resource, 0):
                return _out_of(resource, amount, used.get(resource, 0), have)
    if not pod_fits_node_selection(pod.spec, node):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if conflict := _port_conflict(pod, others):
        return _failed("NodePorts", conflict)
    if find_untolerated_taint(node.spec.taints, pod.spec.tolerations, ("NoExecute",)) is not None:
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def requests(spec: PodSpec) -> dict[str, int]:
    """What a pod asks for in total; cpu in thousandths, the rest in units.

    The sum of its containers and sidecars, or what its hungriest init container needs, whichever is more
    (https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers).
    """
    total: dict[str, int] = {}
    for container in spec.containers:
        _add(total, _container(container.resources.requests if container.resources else {}))
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in spec.init_containers:
        own = _container(container.resources.requests if container.resources else {})
        if container.restart_policy == "Always":
            _add(sidecars, own)
            _add(total, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)
        for resource, amount in own.items():
            most[resource] = max(most.get(resource, 0), amount)
    for resource, amount in most.items():
        total[resource] = max(total.get(resource, 0), amount)
    _add(total, _container(spec.overhead))
    return total


def _container(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    return {resource: _amount(resource, quantity) for resource, quantity in quantities.items()}


def _amount(resource: str, quantity: str | int | float) -> int:
    return milli(quantity) if resource == "cpu" else to_int(quantity)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def _out_of(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}",
    )


def _failed(predicate: str, description: str) -> Rejection:
    return Rejection(predicate, f"Predicate {predicate} failed: {description}")


def _port_conflict(pod: Pod, others: Iterable[Pod]) -> str:
    taken = {port for other in others for port in _host_ports(other)}
    return "node(s) didn't have free ports for the requested pod ports" if taken & _host_ports(pod) else ""


def _host_ports(pod: Pod) -> set[tuple[str, str, int]]:
    return {
        (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port
    }
