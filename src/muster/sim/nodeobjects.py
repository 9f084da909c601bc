"""Builds Node and Lease objects as kubelets write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from muster.kube.objects.struct import at_microsecond

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40


def lease(name: str, now: datetime) -> dict[str, Any]:
    """A node's Lease, renewed now."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_DURATION_S, "renewTime": at_microsecond(now)},
    }


def node(
    name: str,
    host: str,
    boot: int,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    now: datetime,
    taints: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """A Ready node; its kubelet registers it with `taints` (registerWithTaints)."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
        },
        **({"spec": {"taints": [dict(taint) for taint in taints]}} if taints else {}),
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "addresses": [{"type": "InternalIP", "address": host}, {"type": "Hostname", "address": name}],
            "nodeInfo": info(name, boot),
            "conditions": conditions(now),
        },
    }


def info(name: str, boot: int) -> dict[str, str]:
    """status.nodeInfo; the boot ID changes with each boot."""
    return {
        "machineID": name,
        "systemUUID": name,
        "bootID": f"{name}-boot-{boot}",
        "kernelVersion": "simulated",
        "osImage": "simulated",
        "containerRuntimeVersion": "simulated://1",
        "kubeletVersion": "v1.36.0",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def conditions(now: datetime, *, ready: str = "True") -> list[dict[str, Any]]:
    """status.conditions; Ready may be True, False or Unknown."""
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    reasons = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "simulated",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for kind, status, reason in (
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", ready, reasons[ready]),
        )
    ]
