"""Pools: nodes reserved for gangs (docs/scheduling.md, "Pools").

Binding checks no capacity, and kube-scheduler does not see our reservations. If both schedulers place pods on a node,
the kubelet rejects some. So a pool must be exclusive, or the scheduler does not use it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from muster.api.names import LABEL_POOL, TAINT_POOL
from muster.kube.objects.resources import Amounts
from muster.kube.objects.taints import HARD_EFFECTS

if TYPE_CHECKING:
    from muster.scheduler.nodes.node_class import NodeRecord


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


def pool_of(node: NodeRecord) -> Pool:
    """Return the pool state of a node, from its label, its taint and its pods of other schedulers."""
    if LABEL_POOL not in node.labels:
        return Pool.NONE
    if not any(taint.key == TAINT_POOL and taint.effect in HARD_EFFECTS for taint in node.taints):
        return Pool.NO_TAINT
    return Pool.MIXED if devices(node.foreign_used) else Pool.EXCLUSIVE
