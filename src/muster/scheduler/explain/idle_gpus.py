"""Counts idle GPUs by the reason why no waiting gang uses them.

The cost depends on the number of buckets (nodes with equal room), not on the number of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from itertools import islice

from muster.api.names import TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.scheduler.memo import matcher_for
from muster.scheduler.nodes.node_class import NodeClass
from muster.scheduler.placement.ledger import fits
from muster.scheduler.plan import Plan
from muster.scheduler.pods.resources import gpus
from muster.scheduler.reasons import NodeWhy, Why
from muster.scheduler.snapshot import Snapshot

CLASSES_MAX = 20
"""Maximum number of different pods of waiting gangs that are compared with nodes."""
_WAITS_FOR_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.TOO_MANY_WAYS, Why.BEHIND, Why.MAKING_ROOM})

_TESTS = frozenset({NodeWhy.UNTESTED, NodeWhy.TESTED_TOO_LONG_AGO})


class IdleWhy(StrEnum):
    """Why GPUs are idle while gangs wait. Values are labels of a metric: never rename one.

    RESERVED: a pod of a waiting gang fits, and its gang waits for more nodes, or for its turn.
    FRAGMENTED: a waiting gang could use the node, but too little of it is free.
    UNTESTED: the node has not passed its tests, or is not open to pods yet.
    QUARANTINED: the node is in quarantine, cordoned or not ready.
    CONSTRAINT: the selectors, affinity, tolerations or teams of all waiting gangs exclude the node.
    """

    RESERVED = "reserved"
    FRAGMENTED = "fragmented"
    UNTESTED = "untested"
    QUARANTINED = "quarantined"
    CONSTRAINT = "constraint"


def idle_gpus(snapshot: Snapshot, plan: Plan) -> Counter[IdleWhy]:
    """Return the number of idle GPUs by reason; empty if no gang with GPUs waits for nodes."""
    waiting = (snapshot.gangs[key] for key, reason in plan.waiting.items() if reason.why in _WAITS_FOR_NODES)
    distinct = dict.fromkeys(cls for gang in waiting for cls in gang.counts if gpus(cls.request))
    classes = list(islice(distinct, CLASSES_MAX))
    found: Counter[IdleWhy] = Counter()
    if not classes:
        return found
    matcher = matcher_for(snapshot, plan.memo)
    for bucket in snapshot.buckets.values():
        free = gpus(bucket.free) * len(bucket.names)
        if free <= 0:
            continue
        matches = [matcher.match(cls, bucket.node_class).reason for cls in classes]
        usable = [cls for cls, reason in zip(classes, matches, strict=True) if reason is None]
        if any(fits(cls, bucket) for cls in usable):
            found[IdleWhy.RESERVED] += free
        elif usable:
            found[IdleWhy.FRAGMENTED] += free
        else:
            found[_excluded(bucket.node_class, {reason.why for reason in matches if reason is not None})] += free
    return found


def _excluded(node_class: NodeClass, reasons: Collection[NodeWhy]) -> IdleWhy:
    """Return why no class may use these nodes, from the verdicts on all classes."""
    taints = {taint.key for taint in node_class.taints}
    if node_class.problem or node_class.unschedulable or TAINT_QUARANTINE in taints:
        return IdleWhy.QUARANTINED
    if taints & {TAINT_PREFLIGHT, TAINT_JOINING} or not _TESTS.isdisjoint(reasons):
        return IdleWhy.UNTESTED
    return IdleWhy.CONSTRAINT
