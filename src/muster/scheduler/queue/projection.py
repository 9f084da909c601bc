"""Projects when a waiting gang starts at the latest, if everything in front of it uses its full time limit.

The projection replays the queue in order, without backfill. Running gangs leave when their time limit ends. Each
waiting gang takes nodes as soon as it fits, and holds them for its whole limit (conservative projection). Backfilled
gangs have ended before the head of the queue starts, so they do not delay other gangs. The start is unknown if a gang
in front has no time limit. It is also unknown if rules about other pods (affinity, anti-affinity, spread) affect where
this gang or a gang in front may run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.memo import matcher_for
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.node_class import NodeClass
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.placement.rules import is_related
from muster.scheduler.plan import Plan
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.backfill import Start, would_end_at
from muster.scheduler.reasons import Why
from muster.scheduler.snapshot import Queue, Snapshot

AHEAD = 200
"""With more gangs in front than this, the start counts as unknown, because the replay would take too long."""
_TAKES_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.TOO_MANY_WAYS, Why.MAKING_ROOM})


def starts_by(snapshot: Snapshot, plan: Plan, gang: Gang, now: float) -> Start | None:
    """Return the range of times in which a gang without a placement starts.

    Returns None if that is not known, for example if a gang in front has no time limit. `plan` is the plan for the
    snapshot.
    """
    known = plan.starts.get(gang.key)
    if known is not None or gang.queued_as is None or not snapshot.ending:
        return known
    matcher = matcher_for(snapshot, plan.memo)
    ahead = _ahead(snapshot, matcher, plan, gang)
    if ahead is None:
        return None
    ledger = Ledger(snapshot.buckets)
    if any(is_related(cls, ledger.layer) for each in (*ahead, gang) for cls in each.counts):
        return None
    at, started = now, list[tuple[float, str, dict[int, str]]]()
    running = ((max(end, now), key) for end, key in snapshot.ending)
    waits_for = _Ends(snapshot, ledger, running, started)
    for each in (*ahead, gang):
        groups = _groups(each)
        while isinstance(chosen := choose(ledger, matcher, groups, failed=each.failed_nodes), Shortage):
            end = waits_for.next()
            if end is None:
                return None
            at = max(at, end)
        if each is gang:
            return Start(now, at)
        end = would_end_at(each, at)
        if end is None:
            return None
        heapq.heappush(started, (max(at, end), each.key, chosen))
    return None


class _Ends:
    """The ends of gangs, in order of time: of running gangs, and of gangs that the projection has started."""

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: Ledger,
        running: Iterator[tuple[float, str]],
        started: list[tuple[float, str, dict[int, str]]],
    ) -> None:
        self._snapshot, self._ledger = snapshot, ledger
        self._running, self._started = running, started
        self._first = next(running, None)

    def next(self) -> float | None:
        """Free the room of the gangs that end next, and return the time; None if no gang ends."""
        ends = [each[0] for each in (self._first, *self._started[:1]) if each is not None]
        if not ends:
            return None
        end = min(ends)
        while self._first is not None and self._first[0] <= end:
            self._give(self._snapshot.gangs[self._first[1]].takes())
            self._first = next(self._running, None)
        while self._started and self._started[0][0] <= end:
            _, key, chosen = heapq.heappop(self._started)
            classes = self._snapshot.gangs[key].pending_class
            self._give((name, classes[slot]) for slot, name in chosen.items())
        return end

    def _give(self, taken: Iterable[tuple[str, PodClass]]) -> None:
        """Free the room. Nodes that are alike are freed together.

        If a node occurs more than once (several pods), each further occurrence is freed in a later pass.
        """
        alike: dict[tuple[Bucket, PodClass], list[str]] = {}
        seen: set[str] = set()
        again: list[tuple[str, PodClass]] = []
        for name, cls in taken:
            node = self._snapshot.nodes[name]
            bucket = self._ledger.room(node)
            if name in seen:
                again.append((name, cls))
            elif bucket is not None and not node.fully_held:
                alike.setdefault((bucket, cls), []).append(name)
            seen.add(name)
        for (bucket, cls), names in alike.items():
            self._ledger.give(bucket, names, cls)
        if again:
            self._give(again)


def _ahead(snapshot: Snapshot, matcher: Matcher, plan: Plan, gang: Gang) -> list[Gang] | None:
    """Return the gangs in front that compete for nodes, directly or through others; None if the start is not known.

    The start is not known if one of them has no limit, or if there are more than `AHEAD` of them. It is also not known
    if a gang with a placement takes nodes in place of its lost ones.
    """
    assert gang.queued_as is not None
    classes = {bucket.node_class for bucket in snapshot.buckets.values()}
    wanted = _usable(matcher, gang.counts, classes)
    others = [
        (queue, _usable(matcher, queue[0].counts, classes))
        for queue in snapshot.queues.values()
        if queue.position(gang.order)
    ]
    queues: list[Queue] = []
    while joined := [item for item in others if item[1] & wanted]:
        queues += [queue for queue, _ in joined]
        wanted = wanted.union(*(usable for _, usable in joined))
        others = [item for item in others if item not in joined]
    if sum(queue.position(gang.order) for queue in queues) > AHEAD:
        return None
    for key, reason in plan.waiting.items():
        repaired = snapshot.gangs[key]
        takes_nodes = repaired.placement is not None and reason.why in _TAKES_NODES
        if takes_nodes and wanted & _usable(matcher, repaired.counts, classes):
            return None  # the time when this gang frees its nodes is not known
    found = [queue[at] for queue in queues for at in range(queue.position(gang.order))]
    found = [each for each in found if not _keeps_nothing(plan, each)]
    if any(each.limit_s is None for each in found):
        return None
    return sorted(found, key=lambda each: each.order)


def _keeps_nothing(plan: Plan, gang: Gang) -> bool:
    reason = plan.waiting.get(gang.key)
    return reason is not None and reason.why is Why.MORE_THAN_THE_CLUSTER


def _usable(matcher: Matcher, pods: Iterable[PodClass], classes: Iterable[NodeClass]) -> set[NodeClass]:
    pods = list(pods)
    return {each for each in classes if any(matcher.match(cls, each).reason is None for cls in pods)}


def _groups(gang: Gang) -> Groups:
    groups: dict[PodClass, list[int]] = {}
    for slot in sorted(gang.pending):
        groups.setdefault(gang.pending_class[slot], []).append(slot)
    return groups
