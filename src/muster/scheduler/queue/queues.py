"""Sorts gangs: in a queue for nodes, with a placement that needs attention, or not ready."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.gangs.gang import Gang, Order
from muster.scheduler.gangs.placements import GIVEN_UP, is_leaving, is_open
from muster.scheduler.preemption.victims import may_leave
from muster.scheduler.queue.backfill import ends_at
from muster.scheduler.snapshot import QueueKey

Size = frozenset[tuple[int, int]]
"""(number of a pod class, pending members of this class)."""
_Kind = tuple[Size, int, Likeness | None]
"""What candidates for backfill have in common: size, requests to leave so far, and what a prediction depends on."""


class Queue:
    """Complete gangs without a placement that have the same pod classes, in queue order."""

    __slots__ = ("_candidates", "_gangs", "_kinds", "_limited", "_orders", "key")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self._orders: list[Order] = []
        self._limited: list[Order] = []
        self._gangs: dict[Order, Gang] = {}
        self._candidates: dict[_Kind, list[Order]] = {}
        self._kinds: dict[Order, _Kind] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def __getitem__(self, index: int) -> Gang:
        return self._gangs[self._orders[index]]

    def add(self, gang: Gang) -> Order:
        """Insert the gang in order; return its order, by which it is removed."""
        order = gang.order
        insort(self._orders, order)
        self._gangs[order] = gang
        if gang.limit_s is not None:
            insort(self._limited, order)
        if gang.restartable or gang.requeueable:
            size = frozenset((cls.number, count) for cls, count in gang.counts.items())
            kind = self._kinds[order] = (size, gang.times_asked, None if gang.restartable else gang.likeness)
            insort(self._candidates.setdefault(kind, []), order)
        return order

    def remove(self, order: Order) -> None:
        """Remove the gang that was added with that order."""
        del self._orders[bisect_left(self._orders, order)]
        del self._gangs[order]
        at = bisect_left(self._limited, order)
        if at < len(self._limited) and self._limited[at] == order:
            del self._limited[at]
        kind = self._kinds.pop(order, None)
        if kind is not None:
            alike = self._candidates[kind]
            del alike[bisect_left(alike, order)]
            if not alike:
                del self._candidates[kind]

    def position(self, order: Order) -> int:
        """Return how many gangs of this queue are before `order`."""
        return bisect_left(self._orders, order)

    def limited_after(self, order: Order) -> Iterator[Gang]:
        """Yield the gangs after `order` that have a time limit."""
        return self._after(self._limited, order)

    def candidates_after(self, order: Order) -> list[Iterator[Gang]]:
        """Return the gangs after `order` that may be backfilled: an iterator in order for each kind that fits alike."""
        return [self._after(alike, order) for alike in self._candidates.values() if alike[-1] > order]

    def _after(self, orders: list[Order], order: Order) -> Iterator[Gang]:
        for at in range(bisect_right(orders, order), len(orders)):
            yield self._gangs[orders[at]]


class Queues:
    """All gangs by scheduling state."""

    def __init__(self, bind_deadline_s: float) -> None:
        self.by_classes: dict[QueueKey, Queue] = {}
        self.attention: dict[str, Gang] = {}
        self.waiting: dict[str, Gang] = {}
        self.movable: dict[int, dict[str, Gang]] = {}
        self.borrowing: dict[str, Gang] = {}
        self.backfilled: dict[str, Gang] = {}
        self.ending: list[tuple[float, str]] = []
        self.holding: dict[str, Gang] = {}
        self._held_as: dict[str, tuple[int, float | None]] = {}
        self.joining: dict[QueueKey, Queue] = {}
        self._bind_deadline_s = bind_deadline_s

    def sort_in(self, gang: Gang) -> None:
        """Move the gang to its current queue or state."""
        self.remove(gang)
        if gang.placement is not None:
            if self._needs_a_look(gang):
                self.attention[gang.key] = gang
            elif gang.joiners:
                self._join(gang)
        elif gang.lost_its_placement:
            self.attention[gang.key] = gang
        elif gang.blocker() is not None:
            if gang.has_pods:
                self.waiting[gang.key] = gang
        elif gang.pending:
            key = frozenset(cls.number for cls in gang.counts)
            queue = self.by_classes.get(key)
            if queue is None:
                queue = self.by_classes[key] = Queue(key)
            gang.queued_as = (key, queue.add(gang))
        if gang.placement is not None or len(gang.pending) < len(gang.current):
            self._holds(gang)

    def remove(self, gang: Gang) -> None:
        """Remove the gang from its queue and state."""
        self.attention.pop(gang.key, None)
        self.waiting.pop(gang.key, None)
        self._holds_no_more(gang)
        if gang.queued_as is not None:
            key, order = gang.queued_as
            queue = self.by_classes[key]
            queue.remove(order)
            if not queue:
                del self.by_classes[key]
            gang.queued_as = None
        if gang.joining_as is not None:
            key, order = gang.joining_as
            self.joining[key].remove(order)
            if not self.joining[key]:
                del self.joining[key]
            gang.joining_as = None

    def _join(self, gang: Gang) -> None:
        """Queue the extra pods of a running gang among those of other gangs."""
        key = frozenset(pod.cls.number for pod in gang.joiners.values() if pod.cls is not None and pod.problem is None)
        if key:
            if key not in self.joining:
                self.joining[key] = Queue(key)
            gang.joining_as = (key, self.joining[key].add(gang))

    def end_of(self, gang: Gang) -> float | None:
        """Return when the gang ends, as of the last `sort_in`; None if it holds nothing or has no limit."""
        return self._held_as.get(gang.key, (0, None))[1]

    def _holds(self, gang: Gang) -> None:
        end = ends_at(gang)
        self.holding[gang.key] = gang
        self._held_as[gang.key] = (gang.priority, end)
        if is_leaving(gang) or may_leave(gang, self._bind_deadline_s):
            self.movable.setdefault(gang.priority, {})[gang.key] = gang
            if gang.borrows:
                self.borrowing[gang.key] = gang
            if gang.backfilled:
                self.backfilled[gang.key] = gang
        if end is not None:
            insort(self.ending, (end, gang.key))

    def _holds_no_more(self, gang: Gang) -> None:
        held = self._held_as.pop(gang.key, None)
        if held is None:
            return
        priority, end = held
        self.holding.pop(gang.key, None)
        self.borrowing.pop(gang.key, None)
        self.backfilled.pop(gang.key, None)
        movable = self.movable.get(priority, {})
        if movable.pop(gang.key, None) is not None and not movable:
            del self.movable[priority]
        if end is not None:
            del self.ending[bisect_left(self.ending, (end, gang.key))]

    def _needs_a_look(self, gang: Gang) -> bool:
        placement = gang.placement
        assert placement is not None
        return (
            bool(gang.pending)
            or not gang.current
            or placement.status.phase in GIVEN_UP
            or placement.spec.preempting
            or bool(gang.surplus)
            or is_open(placement, self._bind_deadline_s)
        )
