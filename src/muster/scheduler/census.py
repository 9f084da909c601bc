"""Counts nodes by what they mean for a pod: the arithmetic behind every explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from muster.scheduler.gangs import Gang
from muster.scheduler.ledger import Ledger, fits
from muster.scheduler.nodes import Bucket, NodeRecord
from muster.scheduler.podclass import PodClass
from muster.scheduler.reasons import NodeReason, NodeWhy
from muster.scheduler.resources import times_fits
from muster.scheduler.rules import Rules, is_related
from muster.scheduler.snapshot import Snapshot


class NodeCount(msgspec.Struct, frozen=True):
    """`count` nodes are so, as far as the pod is concerned."""

    why: NodeWhy
    detail: str
    count: int

    def text(self) -> str:
        """Say it, such as "1 not ready"."""
        return f"{self.count} {NodeReason(self.why, self.detail).text()}"


def census(
    snapshot: Snapshot, cls: PodClass, *, reserved: Mapping[int, Gang], beside: Collection[str] = ()
) -> tuple[NodeCount, ...]:
    """Judge every node for pods of the class, most frequent reason first; `beside` are nodes of the gang's own."""
    counts: Counter[tuple[NodeWhy, str]] = Counter()
    layer = Ledger(snapshot.buckets).layer
    rules = Rules(cls, layer, snapshot.matcher) if is_related(cls, layer) else None
    for bucket in snapshot.buckets.values():
        match = snapshot.matcher.match(cls, bucket.node_class)
        if match.reason is not None:
            detail = "" if match.reason.why is NodeWhy.NOT_READY else match.reason.detail
            counts[match.reason.why, detail] += len(bucket.names)
            continue
        head = reserved.get(bucket.node_class.number)
        room = fits(cls, bucket)
        for name in bucket.names:
            if not match.serves(name):
                counts[NodeWhy.EXCLUDED, ""] += 1
            elif name in beside:
                counts[NodeWhy.IN_USE, "by its other slots"] += 1
            elif not room:
                counts[_taken(snapshot, snapshot.nodes[name], bucket, cls)] += 1
            elif head is not None:
                counts[NodeWhy.RESERVED, head.full_name] += 1
            else:
                forbidden = rules.why_not(name) if rules is not None else None
                counts[(forbidden.why, forbidden.detail) if forbidden is not None else (NodeWhy.FREE, "")] += 1
    return tuple(NodeCount(why, detail, count) for (why, detail), count in sorted(counts.items(), key=_largest_first))


def _largest_first(item: tuple[tuple[NodeWhy, str], int]) -> tuple[int, str, str]:
    return (-item[1], item[0][0].value, item[0][1])


def _taken(snapshot: Snapshot, node: NodeRecord, bucket: Bucket, cls: PodClass) -> tuple[NodeWhy, str]:
    """By whom the node is taken: the gang that has most pods or held slots on it."""
    if times_fits(cls.request, bucket.free):
        return (NodeWhy.HOST_PORT, ", ".join(str(port[2]) for port in cls.ports))
    holders = Counter(occupants(snapshot, node))
    if not holders:
        return (NodeWhy.IN_USE, "by pods of other schedulers")
    name, _ = min(holders.items(), key=lambda item: (-item[1], item[0]))
    return (NodeWhy.IN_USE, f"by {name}")


def occupants(snapshot: Snapshot, node: NodeRecord) -> list[str]:
    """Return the full name of the gang of each pod and held slot of ours on the node."""
    keys = [snapshot.pods[uid].gang for uid in node.pods if uid in snapshot.pods]
    keys += [key for key, _ in node.holds]
    return [snapshot.gangs[key].full_name for key in keys if key in snapshot.gangs]
