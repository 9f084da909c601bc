"""Command lines of the API servers and of etcd, where they are pods of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.doctor.rule import Context
from muster.kube.errors import ApiError

_WHAT: Final = "whether Events have an etcd of their own"
_SELECTOR: Final = "component in (kube-apiserver,etcd)"
"""Labels of kubeadm's static pods."""
_PODS_MAX: Final = 20
_EVENTS: Final = frozenset({"/events", "events.k8s.io/events"})


class EtcdFlags(msgspec.Struct, frozen=True):
    """What is known about the flags.

    Attributes:
        events_split: whether every API server stores Events in an etcd of their own; None if some resources have one
            and it cannot be seen which.
        quota_bytes: etcd's quota; None if no etcd has the flag.
    """

    events_split: bool | None
    quota_bytes: float | None = None


async def collect_flags(context: Context) -> EtcdFlags | None:
    """Read the pods of the control plane; without them, the checks of `/readyz`, which has one for each other etcd."""
    reader = context.reader
    pods = await reader.list(
        "/api/v1/namespaces/kube-system/pods", what=_WHAT, limit=_PODS_MAX, params={"labelSelector": _SELECTOR}
    )
    found = flags_of(pods.items) if pods is not None else None
    if found is not None:
        return found
    reader.cost.requests += 1
    try:
        body = await reader.client.request("GET", "/readyz", params={"verbose": ""}, headers={"Accept": "text/plain"})
    except ApiError as error:
        if error.status != 500:  # an unready server answers 500 with the same list
            reader.note(_WHAT, error.message, "get nonResourceURL /readyz" if error.status == 403 else "")
            return None
        body = error.message.encode()
    reader.cost.bytes += len(body)
    if b"]etcd-override-" not in body:
        return EtcdFlags(events_split=False)
    reader.note(_WHAT, "the API server has another etcd for some resources, and does not report for which")
    return EtcdFlags(events_split=None)


def flags_of(pods: Iterable[Mapping[str, Any]]) -> EtcdFlags | None:
    """Read the flags from static pods; None without an API server among them."""
    overrides: list[str] = []
    quotas: list[float] = []
    for pod in pods:
        words = [
            word
            for container in pod["spec"].get("containers") or ()
            for word in (*(container.get("command") or ()), *(container.get("args") or ()))
        ]
        component = (pod["metadata"].get("labels") or {}).get("component")
        if component == "kube-apiserver":
            overrides.append(_flag(words, "etcd-servers-overrides"))
        elif component == "etcd":
            quota = _flag(words, "quota-backend-bytes")
            quotas += [float(quota)] if quota.isascii() and quota.isdigit() and int(quota) else []
    if not overrides:
        return None
    split = all(any(entry.partition("#")[0] in _EVENTS for entry in each.split(",")) for each in overrides)
    return EtcdFlags(split, min(quotas, default=None))


def _flag(words: Iterable[str], name: str) -> str:
    """Return the last value of a flag written as --name=value; "" without one."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return values[-1] if values else ""
