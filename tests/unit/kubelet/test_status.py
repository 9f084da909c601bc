"""Phase, conditions and quality of service of a pod."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from muster.embedded.kubelet.pods.status import PodFindings, pod_status, quality_of_service
from muster.kube.objects.container import ContainerStatus
from muster.kube.objects.pod import Pod, PodStatus
from muster.kube.objects.struct import from_dict

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RUNNING: dict[str, Any] = {"running": {}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def status(name: str, state: dict[str, Any], last: dict[str, Any] | None = None, **more: Any) -> ContainerStatus:
    return from_dict({"name": name, "state": state, "lastState": last, **more}, ContainerStatus)


def make_pod(policy: str, containers: int = 1, init: int = 0, **spec: Any) -> Pod:
    body = {
        "restartPolicy": policy,
        "containers": [{"name": f"c{index}"} for index in range(containers)],
        "initContainers": [{"name": f"i{index}"} for index in range(init)],
        **spec,
    }
    return from_dict({"metadata": {"name": "p", "generation": 3}, "spec": body}, Pod)


@pytest.mark.parametrize(
    ("policy", "states", "terminal", "phase"),
    [
        ("Never", [WAITING], False, "Pending"),
        ("Never", [RUNNING], False, "Running"),
        ("Never", [RUNNING, WAITING], False, "Pending"),
        ("Never", [RUNNING, ended(1)], False, "Running"),
        ("Never", [ended(0), ended(0)], False, "Running"),  # its processes may not all be gone
        ("Never", [ended(0), ended(0)], True, "Succeeded"),
        ("Never", [ended(0), ended(1)], True, "Failed"),
        ("OnFailure", [ended(1)], False, "Running"),
        ("Always", [ended(0)], False, "Running"),
        ("Always", [ended(0)], True, "Succeeded"),
        ("Always", [ended(143)], True, "Failed"),
        ("Always", [WAITING], True, "Failed"),
    ],
)
def test_phase(policy: str, states: list[dict[str, Any]], terminal: bool, phase: str) -> None:
    main = [status(f"c{index}", state) for index, state in enumerate(states)]
    findings = PodFindings(main=main, terminal=terminal)
    assert pod_status(make_pod(policy, len(states)), findings, PodStatus(), NOW).phase == phase


def test_crash_loop_is_running_and_never_started_is_pending() -> None:
    crashing = status("c0", {"waiting": {"reason": "CrashLoopBackOff"}}, ended(1))
    pod = make_pod("Always")
    assert pod_status(pod, PodFindings(main=[crashing]), PodStatus(), NOW).phase == "Running"
    assert pod_status(pod, PodFindings(), PodStatus(), NOW).phase == "Pending"


def test_init_containers_hold_the_pod_back() -> None:
    pod = make_pod("OnFailure", init=2)
    first = status("i0", ended(0), ready=True)
    findings = PodFindings(init=[first, status("i1", RUNNING)], main=[status("c0", WAITING)])
    found = pod_status(pod, findings, PodStatus(), NOW)
    assert found.phase == "Pending"
    (initialized,) = [condition for condition in found.conditions if condition.type == "Initialized"]
    assert (initialized.status, initialized.reason) == ("False", "ContainersNotInitialized")
    assert initialized.message == "containers with incomplete status: [i1]"


def test_final_phase_stays() -> None:
    pod = make_pod("Always")
    found = pod_status(pod, PodFindings(main=[status("c0", RUNNING)]), PodStatus(phase="Failed"), NOW)
    assert found.phase == "Failed"


def test_transition_time_is_that_of_the_change() -> None:
    pod = make_pod("Always")
    first = pod_status(pod, PodFindings(main=[status("c0", RUNNING, ready=True)]), PodStatus(), NOW)
    later = NOW + datetime.timedelta(hours=1)
    same = pod_status(pod, PodFindings(main=[status("c0", RUNNING, ready=True)]), first, later)
    assert same == first
    unready = pod_status(pod, PodFindings(main=[status("c0", RUNNING)]), first, later)
    times = {condition.type: condition.last_transition_time for condition in unready.conditions}
    assert times["Ready"] == later
    assert times["Initialized"] == NOW


def test_readiness_gate() -> None:
    pod = make_pod("Always", readinessGates=[{"conditionType": "example.com/ok"}])
    found = pod_status(pod, PodFindings(main=[status("c0", RUNNING, ready=True)]), PodStatus(), NOW)
    ready = {condition.type: condition for condition in found.conditions}["Ready"]
    assert (ready.status, ready.reason) == ("False", "ReadinessGatesNotReady")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": 1}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], expected: str) -> None:
    pod = from_dict({"spec": {"containers": [{"name": "c", "resources": resources}]}}, Pod)
    assert quality_of_service(pod.spec) == expected
