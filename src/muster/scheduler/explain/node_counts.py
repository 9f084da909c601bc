"""Counts nodes by the reason why a pod can or cannot use them. All explanations are made from these counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.memo import Recalled
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.rules import Rules, is_related
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits
from muster.scheduler.preemption.eviction import why_it_stays
from muster.scheduler.queue.lending import is_lent, outranks
from muster.scheduler.queue.overtaking import has_overtaken
from muster.scheduler.reasons import NodeReason, NodeWhy
from muster.scheduler.snapshot import Snapshot


class NodeCount(msgspec.Struct, frozen=True):
    """Number of nodes with the same verdict for a pod."""

    why: NodeWhy
    detail: str
    count: int

    def text(self) -> str:
        """Return text such as "1 not ready"."""
        return f"{self.count} {NodeReason(self.why, self.detail).text()}"


def census(
    snapshot: Snapshot,
    recalled: Recalled,
    cls: PodClass,
    *,
    reserved: Mapping[int, Gang],
    beside: Collection[str] = (),
    gang: Gang | None = None,
    now: float = 0.0,
) -> tuple[NodeCount, ...]:
    """Count every node by its verdict for pods of the class, most frequent first.

    `beside` are nodes that the gang uses for other slots. A count of nodes in use has a detail: why their gang
    cannot be preempted for `gang`, or which team borrows the nodes.
    """
    matcher = recalled.matcher
    counts: Counter[tuple[NodeWhy, str]] = Counter()
    holders: Counter[str] = Counter()
    lent: Counter[str] = Counter()
    layer = Ledger(snapshot.buckets).layer
    rules = Rules(cls, layer, matcher) if is_related(cls, layer) else None
    for bucket in snapshot.buckets.values():
        match = matcher.match(cls, bucket.node_class)
        if match.reason is not None:
            detail = "" if match.reason.why is NodeWhy.NOT_READY else match.reason.detail
            counts[match.reason.why, detail] += len(bucket.names)
            continue
        head = reserved.get(bucket.node_class.number)
        room = fits(cls, bucket)
        usual = (NodeWhy.RESERVED, head.full_name) if head is not None else (NodeWhy.FREE, "")
        if room and match.names is None and not beside and (head is not None or rules is None):
            counts[usual] += len(bucket.names)
            continue
        port_taken = not room and times_fits(cls.request, bucket.free) > 0
        for name in bucket.names:
            if not match.serves(name):
                counts[NodeWhy.EXCLUDED, ""] += 1
            elif name in beside:
                counts[NodeWhy.IN_USE, "by its other slots"] += 1
            elif port_taken:
                counts[NodeWhy.HOST_PORT, ", ".join(str(port[2]) for port in cls.ports)] += 1
            elif not room:
                holder = _holder(snapshot, snapshot.nodes[name])
                if holder and gang is not None and is_lent(snapshot, gang, snapshot.gangs[holder], name):
                    lent[holder] += 1
                else:
                    holders[holder] += 1
            elif head is not None:
                counts[usual] += 1
            else:
                forbidden = rules.why_not(name) if rules is not None else None
                counts[(forbidden.why, forbidden.detail) if forbidden is not None else usual] += 1
    for key, count in lent.items():
        borrower = snapshot.gangs[key]
        counts[NodeWhy.LENT, f"team {borrower.team}" if borrower.team else borrower.full_name] += count
    for key, count in holders.items():
        by = snapshot.gangs[key].full_name if key else "pods of other schedulers"
        held = snapshot.gangs[key] if key else None
        stays = None
        if held is not None and gang is not None and outranks(gang, held):
            stays = why_it_stays(recalled.budget_needs, held, now)
        if stays is not None:
            counts[stays.why, f"{by}: {stays.detail}"] += count
        else:
            backfilled = held is not None and gang is not None and has_overtaken(gang, held)
            counts[NodeWhy.IN_USE, f"by {by}, backfilled until then" if backfilled else f"by {by}"] += count
    return tuple(NodeCount(why, detail, count) for (why, detail), count in sorted(counts.items(), key=_largest_first))


def _largest_first(item: tuple[tuple[NodeWhy, str], int]) -> tuple[int, str, str]:
    return (-item[1], item[0][0].value, item[0][1])


def _holder(snapshot: Snapshot, node: NodeRecord) -> str:
    """Return the key of the gang with most pods or reserved slots on the node; "" if there is none."""
    pods, gangs = snapshot.pods, snapshot.gangs
    keys = [pods[uid].gang for uid in node.pods if uid in pods] + [key for key, _ in node.holds]
    keys = [key for key in keys if key in gangs]
    if not keys or keys.count(keys[0]) == len(keys):
        return keys[0] if keys else ""
    return min(Counter(keys).items(), key=lambda item: (-item[1], item[0]))[0]
