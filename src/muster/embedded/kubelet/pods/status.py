"""Computes the status of a pod from its containers: phase, conditions, quality of service. Pure.

Sources: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/, and the real kubelet for what that leaves
open (getPhase in pkg/kubelet/kubelet_pods.go, pkg/kubelet/status/generate.go).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

import msgspec

from muster.kube.objects.container import Container, ContainerStatus
from muster.kube.objects.pod import Pod, PodCondition, PodIP, PodSpec, PodStatus
from muster.kube.objects.quantity import milli

READY_TO_START = "PodReadyToStartContainers"
_TERMINAL = {"Failed": "PodFailed", "Succeeded": "PodCompleted"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodFindings:
    """The kubelet's state of a pod.

    Attributes:
        init, main: the containers' states, in the order of the spec, without containers that were not created yet.
        terminal: no process of it runs or will run.
        sandbox: its address and folders exist.
        reason, message: why it failed as a whole (rejected, deadline), if it did.
        pod_ip, host_ip: addresses; "" before there are any.
        start_time: when the kubelet accepted it.
    """

    init: Sequence[ContainerStatus] = ()
    main: Sequence[ContainerStatus] = ()
    terminal: bool = False
    sandbox: bool = False
    reason: str = ""
    message: str = ""
    pod_ip: str = ""
    host_ip: str = ""
    start_time: datetime.datetime | None = None


def is_sidecar(container: Container) -> bool:
    """Returns whether an init container is a sidecar, which runs beside the main containers."""
    return container.restart_policy == "Always"


def pod_status(pod: Pod, findings: PodFindings, previous: PodStatus, now: datetime.datetime) -> PodStatus:
    """Return the status to report. Unchanged conditions keep their times from `previous`."""
    phase = "Failed" if findings.terminal and findings.reason else pod_phase(pod.spec, findings)
    if previous.phase in _TERMINAL:
        phase = previous.phase  # final: the API server would refuse a change
    finished = phase in _TERMINAL
    conditions = [
        _condition(READY_TO_START, findings.sandbox and not finished),
        _initialized(pod.spec, findings, phase),
    ]
    containers_ready = _containers_ready(pod.spec, findings, phase)
    conditions += [containers_ready, _ready(pod, containers_ready)]
    before = {condition.type: condition for condition in previous.conditions}
    return PodStatus(
        phase=phase,
        reason=findings.reason,
        message=findings.message,
        conditions=tuple(_dated(condition, before.get(condition.type), pod, now) for condition in conditions),
        host_ip=findings.host_ip,
        pod_ip=findings.pod_ip,
        pod_ips=(PodIP(ip=findings.pod_ip),) if findings.pod_ip else (),
        start_time=findings.start_time,
        init_container_statuses=tuple(findings.init),
        container_statuses=tuple(findings.main),
        qos_class=quality_of_service(pod.spec),
        observed_generation=pod.metadata.generation,
    )


def pod_phase(spec: PodSpec, findings: PodFindings) -> str:
    """Pending, Running, Succeeded or Failed.

    The last two only once the pod is terminal: its GPUs may be reassigned as soon as they are reported.
    """
    init = {status.name: status for status in findings.init}
    pending_init = failed_init = 0
    for container in spec.init_containers:
        if is_sidecar(container):
            continue
        ended = _exit_code(init.get(container.name))
        if ended is None:
            pending_init += 1
        elif ended != 0:
            failed_init += 1
    main = {status.name: status for status in findings.main}
    statuses = [main.get(container.name) for container in spec.containers]
    running = sum(1 for status in statuses if status is not None and _runs(status))
    exits = [code for status in statuses if (code := _exit_code(status)) is not None]
    waiting = len(statuses) - running - len(exits)
    if findings.terminal:
        return "Succeeded" if not pending_init and len(exits) == len(statuses) and not any(exits) else "Failed"
    return "Pending" if pending_init or failed_init or waiting else "Running"


def quality_of_service(spec: PodSpec) -> str:
    """Guaranteed, Burstable or BestEffort.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
    """
    guaranteed, anything = True, False
    for container in (*spec.containers, *spec.init_containers):
        limits = container.resources.limits if container.resources else {}
        requests = container.resources.requests if container.resources else {}
        for resource in ("cpu", "memory"):
            limit, request = milli(limits.get(resource, 0)), milli(requests.get(resource, limits.get(resource, 0)))
            anything = anything or bool(limit or request)
            guaranteed = guaranteed and limit > 0 and limit == request
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _runs(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def _exit_code(status: ContainerStatus | None) -> int | None:
    """Returns the last exit code of a container that does not run; None if it never ran."""
    if status is None or _runs(status):
        return None
    for state in (status.state, status.last_state):
        if state is not None and state.terminated is not None:
            return state.terminated.exit_code
    return None


def _initialized(spec: PodSpec, findings: PodFindings, phase: str) -> PodCondition:
    statuses = {status.name: status for status in findings.init}
    unknown = [container.name for container in spec.init_containers if container.name not in statuses]
    incomplete = []
    for container in spec.init_containers:
        status = statuses.get(container.name)
        if status is not None and not (status.started if is_sidecar(container) else status.ready):
            incomplete.append(container.name)
    if phase == "Succeeded" and not unknown:
        return _condition("Initialized", True, "PodCompleted")
    if any(_runs(status) or _exit_code(status) is not None for status in findings.main):
        return _condition("Initialized", True)
    message = _listed({"unknown": unknown, "incomplete": incomplete})
    return _condition("Initialized", not message, "ContainersNotInitialized" if message else "", message)


def _containers_ready(spec: PodSpec, findings: PodFindings, phase: str) -> PodCondition:
    if phase in _TERMINAL:
        return _condition("ContainersReady", False, _TERMINAL[phase])
    statuses = {status.name: status for status in (*findings.init, *findings.main)}
    wanted = [*(c.name for c in spec.init_containers if is_sidecar(c)), *(c.name for c in spec.containers)]
    unknown = [name for name in wanted if name not in statuses]
    unready = [name for name in wanted if name in statuses and not statuses[name].ready]
    message = _listed({"unknown": unknown, "unready": unready})
    return _condition("ContainersReady", not message, "ContainersNotReady" if message else "", message)


def _ready(pod: Pod, containers_ready: PodCondition) -> PodCondition:
    if containers_ready.status != "True":
        return msgspec.structs.replace(containers_ready, type="Ready")
    held = {condition.type: condition.status for condition in pod.status.conditions}
    gates = [gate.condition_type for gate in pod.spec.readiness_gates]
    missing = [
        f'corresponding condition of pod readiness gate "{gate}" does not exist.' for gate in gates if gate not in held
    ]
    unmet = [
        f'the status of pod readiness gate "{gate}" is not "True", but {held[gate]}'
        for gate in gates
        if held.get(gate, "True") != "True"
    ]
    message = ", ".join([*missing, *unmet])
    return _condition("Ready", not message, "ReadinessGatesNotReady" if message else "", message)


def _listed(named: dict[str, list[str]]) -> str:
    return ", ".join(f"containers with {what} status: [{' '.join(names)}]" for what, names in named.items() if names)


def _condition(kind: str, holds: bool, reason: str = "", message: str = "") -> PodCondition:
    return PodCondition(type=kind, status="True" if holds else "False", reason=reason, message=message)


def _dated(condition: PodCondition, before: PodCondition | None, pod: Pod, now: datetime.datetime) -> PodCondition:
    changed = before is None or before.status != condition.status or before.last_transition_time is None
    at = now if changed or before is None else before.last_transition_time
    return msgspec.structs.replace(condition, last_transition_time=at, observed_generation=pod.metadata.generation)
