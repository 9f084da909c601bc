"""Counts the GPUs of all nodes by state. The cost depends on the number of buckets, not on the number of nodes."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from muster.api.names import TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.scheduler.nodes.node_class import NodeClass
from muster.scheduler.pods.resources import gpus
from muster.scheduler.snapshot import Snapshot

_CLOSED = frozenset({TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE})


class GpuState(StrEnum):
    """What becomes of a GPU. Values are labels of a metric: never rename one.

    USED: a pod has it, or a gang's Placement holds it.
    FREE: a new pod can have it.
    UNUSABLE: it is free, and its node takes no new pods.
    """

    USED = "used"
    FREE = "free"
    UNUSABLE = "unusable"


def gpu_states(snapshot: Snapshot) -> Counter[GpuState]:
    """Return the number of GPUs in each state, also of those without a GPU."""
    found = Counter(dict.fromkeys(GpuState, 0))
    for bucket in snapshot.buckets.values():
        nodes, free = len(bucket.names), max(0, gpus(bucket.free))
        found[GpuState.USED] += nodes * max(0, gpus(bucket.node_class.allocatable) - free)
        found[GpuState.UNUSABLE if _is_closed(bucket.node_class) else GpuState.FREE] += nodes * free
    return found


def _is_closed(node_class: NodeClass) -> bool:
    """Returns whether nodes of the class take no new pods of jobs."""
    closed = not _CLOSED.isdisjoint(taint.key for taint in node_class.taints)
    return bool(node_class.problem) or node_class.unschedulable or closed
