"""Builds the merge patches that a kubelet writes into a pod's status."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import encode


def running(pod: Pod, *, host: str, address: str, now: datetime) -> bytes:
    """Every container runs and is ready."""
    at = _wire(now)
    return _patch(
        {
            "phase": "Running",
            "conditions": _conditions(pod, at, ready="True"),
            "hostIP": host,
            "hostIPs": [{"ip": host}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": at,
            "containerStatuses": [
                _container(one.name, one.image, {"running": {"startedAt": at}}, ready=True)
                for one in pod.spec.containers
            ],
            "initContainerStatuses": [
                _container(one.name, one.image, _ended(0, "Completed", at), ready=True)
                for one in pod.spec.init_containers
            ],
        }
    )


def ended(pod: Pod, *, code: int, now: datetime, disruption: str = "") -> bytes:
    """Every container has ended with `code`; `disruption` is the reason of a DisruptionTarget condition (KEP-3329)."""
    at = _wire(now)
    conditions = _conditions(pod, at, ready="False")
    if disruption:
        conditions.append(_condition("DisruptionTarget", "True", at, reason=disruption))
    return _patch(
        {
            "phase": "Failed" if code else "Succeeded",
            "conditions": conditions,
            "containerStatuses": [
                _container(one.name, one.image, _ended(code, "Error" if code else "Completed", at), ready=False)
                for one in pod.spec.containers
            ],
        }
    )


def _patch(status: dict[str, Any]) -> bytes:
    return encode({"status": status})


def _wire(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(pod: Pod, at: str, *, ready: str) -> list[dict[str, Any]]:
    ours = {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": "True",
    }
    kept = [
        _condition(one.type, one.status, at, reason=one.reason) for one in pod.status.conditions if one.type not in ours
    ]
    return kept + [_condition(kind, status, at) for kind, status in ours.items()]


def _condition(kind: str, status: str, at: str, *, reason: str = "") -> dict[str, Any]:
    condition = {"type": kind, "status": status, "lastTransitionTime": at}
    return condition | {"reason": reason} if reason else condition


def _container(name: str, image: str, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imageID": image,
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


def _ended(code: int, reason: str, at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": at, "finishedAt": at}}
