"""Pools: nodes reserved for gangs (docs/scheduling.md, "Pools").

Binding checks no capacity, and kube-scheduler does not see our reservations. If both schedulers place pods on a node,
the kubelet rejects some. So a pool must be exclusive, or the scheduler does not use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from muster.api.names import LABEL_POOL, TAINT_POOL
from muster.kube.objects.node import Taint
from muster.kube.objects.resources import Amounts
from muster.kube.objects.taints import HARD_EFFECTS


class Pool(StrEnum):
    """State of a node's pool; the text of an unusable state is its reason."""

    NONE = ""
    EXCLUSIVE = "exclusive"
    NO_TAINT = f"label {LABEL_POOL} without taint {TAINT_POOL}:NoSchedule"
    MIXED = "pods of other schedulers use its devices"

    @property
    def usable(self) -> bool:
        """Whether the pool allows pods on the node."""
        return self in (Pool.NONE, Pool.EXCLUSIVE)


def devices(amounts: Amounts) -> bool:
    """Return whether the amounts include an extended resource (Kubernetes: its name has a domain)."""
    return any(value > 0 and "/" in resource for resource, value in amounts.items())


def pool_of(labels: Mapping[str, str], taints: Iterable[Taint], foreign_used: Amounts) -> Pool:
    """Return the pool state of a node with these labels and taints, and these resources of other schedulers' pods."""
    if LABEL_POOL not in labels:
        return Pool.NONE
    if not any(taint.key == TAINT_POOL and taint.effect in HARD_EFFECTS for taint in taints):
        return Pool.NO_TAINT
    return Pool.MIXED if devices(foreign_used) else Pool.EXCLUSIVE
