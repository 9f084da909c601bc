"""Pools: nodes that are for gangs alone (docs/scheduling.md, "Pools").

The API server's binding checks no capacity and kube-scheduler does not see what is reserved here: where both place
pods on a node, kubelets turn some away. So a pool has to be exclusive, or it is not used at all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from muster.api.names import LABEL_POOL, TAINT_POOL
from muster.kube.resources import Amounts
from muster.kube.taints import HARD_EFFECTS

if TYPE_CHECKING:
    from muster.scheduler.nodes.node_class import NodeRecord


class Pool(StrEnum):
    """What a node is as far as pools go; the text of those that are not used says why."""

    NONE = ""
    EXCLUSIVE = "exclusive"
    NO_TAINT = f"label {LABEL_POOL} without taint {TAINT_POOL}:NoSchedule"
    MIXED = "pods of other schedulers use its devices"

    @property
    def usable(self) -> bool:
        """Whether pods may be placed there, as far as pools go."""
        return self in (Pool.NONE, Pool.EXCLUSIVE)


def devices(amounts: Amounts) -> bool:
    """Whether any extended resource is asked for, or taken (Kubernetes: their names have a domain)."""
    return any(value > 0 and "/" in resource for resource, value in amounts.items())


def pool_of(node: NodeRecord) -> Pool:
    """Judge a node by its label and taint, and by what pods of other schedulers have taken of it."""
    if LABEL_POOL not in node.labels:
        return Pool.NONE
    if not any(taint.key == TAINT_POOL and taint.effect in HARD_EFFECTS for taint in node.taints):
        return Pool.NO_TAINT
    return Pool.MIXED if devices(node.foreign_used) else Pool.EXCLUSIVE
