"""Decides whether a node admits a pod bound to it, by the kubelet's own checks. Pure.

Binding never checks capacity, so these do (pkg/kubelet/lifecycle/predicate.go; the reasons and messages are those).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import PODS, amount, plus, pod_request
from muster.kube.objects.selectors import pod_fits_node_selection
from muster.kube.objects.taints import find_untolerated_taint

_HOLD_NOTHING = ("Succeeded", "Failed")


@dataclasses.dataclass(frozen=True)
class Rejection:
    """Why a pod is rejected: reason and message of its Failed status."""

    reason: str
    message: str


def admit(pod: Pod, node: Node, others: Iterable[Pod]) -> Rejection | None:
    """Return why `node`, which already runs `others`, rejects `pod`; None if it admits it."""
    others = [other for other in others if other.status.phase not in _HOLD_NOTHING]
    capacity = node.status.allocatable
    pods = amount(PODS, capacity.get(PODS, 0))
    if len(others) + 1 > pods:
        return _out_of(PODS, 1, len(others), pods)
    used: dict[str, int] = {}
    for other in others:
        used = plus(used, pod_request(other.spec))
    for resource, asked in pod_request(pod.spec).items():
        if resource in capacity or resource in ("cpu", "memory", "ephemeral-storage"):
            have = amount(resource, capacity.get(resource, 0))
            if asked > have - used.get(resource, 0):
                return _out_of(resource, asked, used.get(resource, 0), have)
    if not pod_fits_node_selection(pod.spec, node):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if conflict := _port_conflict(pod, others):
        return _failed("NodePorts", conflict)
    if find_untolerated_taint(node.spec.taints, pod.spec.tolerations, ("NoExecute",)) is not None:
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


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
