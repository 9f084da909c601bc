"""Cluster DNS: where its pods run, and how long its answers outlive an outage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.doctor.rule import Context

_WHAT: Final = "cluster DNS"
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_CACHE: Final = re.compile(r"^\s*cache(?:\s+(\d+))?(?:\s+[^\s{]+)*\s*(\{[^}]*\})?\s*$", re.MULTILINE)
_STALE: Final = re.compile(r"^\s*serve_stale(?:\s+(\S+))?", re.MULTILINE)
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0}
_STALE_S: Final = 3600.0
"""Default of `serve_stale` of CoreDNS' plugin cache."""


class Dns(msgspec.Struct, frozen=True):
    """CoreDNS or kube-dns in kube-system.

    Attributes:
        nodes: node of each pod.
        control_plane_nodes: nodes with the role control-plane.
        stale_s: how long stale answers are served after the API server or the upstream is gone; 0 if they are not.
    """

    nodes: tuple[str, ...]
    control_plane_nodes: frozenset[str]
    stale_s: float = 0.0


async def collect_dns(context: Context) -> Dns | None:
    """Read the pods of cluster DNS, and its configuration."""
    reader = context.reader
    pods = await reader.list(
        "/api/v1/namespaces/kube-system/pods", what=_WHAT, limit=20, params={"labelSelector": "k8s-app=kube-dns"}
    )
    if pods is None:
        return None
    if not pods.items:
        reader.note(_WHAT, "no pod in kube-system has the label k8s-app=kube-dns")
        return None
    nodes = await reader.list(
        "/api/v1/nodes", what=_WHAT, limit=50, params={"labelSelector": _CONTROL_PLANE}, metadata_only=True
    )
    config = await reader.get(
        "/api/v1/namespaces/kube-system/configmaps/coredns",
        what="caches of cluster DNS",
        right="get configmaps in namespace kube-system",
        optional=True,
    )
    return Dns(
        nodes=tuple(pod["spec"].get("nodeName", "") for pod in pods.items if _runs(pod)),
        control_plane_nodes=frozenset(item["metadata"]["name"] for item in nodes.items) if nodes else frozenset(),
        stale_s=stale_s(((config or {}).get("data") or {}).get("Corefile", "")),
    )


def _runs(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def stale_s(corefile: str) -> float:
    """Return how long CoreDNS' cache serves answers whose origin is gone, in seconds.

    That is the time of `serve_stale` (CoreDNS, plugin cache). Without it, a record lives for its TTL only, which is 5 s
    by default in the plugin kubernetes.
    """
    longest = 0.0
    for match in _CACHE.finditer(corefile):
        block = match[2] or ""
        stale = _STALE.search(block)
        if stale is not None:
            longest = max(longest, _duration_s(stale[1] or "") or _STALE_S)
    return longest


def _duration_s(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
