"""Simulates the queue with one set of run times, and finds when each waiting gang starts.

The rules are those of `decide`, without its details: gangs start in queue order. The first gang of a queue that does
not fit reserves the node classes that it could use. Restartable gangs may start on reserved nodes, and leave them when
the reserved gang fits without them. New gangs, failures and rules about other pods are not simulated.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from muster.scheduler.forecast.rooms import Board

HORIZON_S = 60 * 86_400.0
"""A gang that does not start within this time has no known start."""


Takes = Sequence[tuple[int, Sequence[int]]]
"""(request number, the node of each pod)."""


class Entrant(msgspec.Struct, frozen=True):
    """A gang that waits, or that was backfilled and may have to wait again.

    Attributes:
        queue: number of its queue.
        kind: number of the gangs with the same queue and the same number of pods of each class.
        needs: (position of the pod class, request number, number of pods).
        usable: bit set of the node classes that it could use.
        restartable: it may be backfilled.
        runs: whether it runs at the beginning, backfilled.
    """

    queue: int
    kind: int
    needs: tuple[tuple[int, int, int], ...]
    usable: int
    restartable: bool
    runs: bool = False


class Holder(msgspec.Struct, frozen=True):
    """A gang that runs at the beginning. `entrant`: its position if it is backfilled; else -1."""

    takes: Takes
    entrant: int = -1


class Scene(msgspec.Struct, frozen=True):
    """The beginning of all simulations.

    Attributes:
        everything: the free room beside all gangs.
        firm: the free room beside gangs that are not backfilled.
        entrants: gangs in queue order.
        holders: gangs that run.
        strict: bit set of the node classes on which no gang is backfilled.
    """

    everything: Board
    firm: Board
    entrants: Sequence[Entrant]
    holders: Sequence[Holder]
    strict: int


def simulate(scene: Scene, ends_s: Sequence[float], run_s: Sequence[float]) -> list[float]:
    """Return the wait of each entrant until its start, in seconds; inf if it is not known.

    Args:
        scene: the beginning.
        ends_s: for each holder, the time until it ends.
        run_s: for each entrant, the time for which it runs once it has started.
    """
    return _Simulation(scene, ends_s, run_s).run()


class _Line:
    """Waiting entrants of one queue or kind, by position."""

    __slots__ = ("_at", "_members")

    def __init__(self) -> None:
        self._members: list[int] = []
        self._at = 0

    def append(self, entrant: int) -> None:
        """Add the last entrant."""
        self._members.append(entrant)

    def first(self, waits: Sequence[bool]) -> int:
        """Return the first entrant that waits; -1 if none waits."""
        members, at = self._members, self._at
        while at < len(members) and not waits[members[at]]:
            at += 1
        self._at = at
        return members[at] if at < len(members) else -1

    def back(self, entrant: int) -> None:
        """Record that the entrant waits again."""
        self._at = min(self._at, bisect_left(self._members, entrant))


class _Stay(msgspec.Struct, frozen=True):
    """A gang on its nodes."""

    takes: Takes
    entrant: int
    end_s: float
    backfilled: bool


class _Simulation:
    def __init__(self, scene: Scene, ends_s: Sequence[float], run_s: Sequence[float]) -> None:
        self._entrants, self._strict = scene.entrants, scene.strict
        self._all = self._firm = scene.everything.copy()
        if any(each.restartable or each.runs for each in scene.entrants):
            self._firm = scene.firm.copy()
        self._run_s = list(run_s)
        self._waits = [not each.runs for each in scene.entrants]
        self._starts = [math.inf if waits else 0.0 for waits in self._waits]
        self._unknown = sum(self._waits)
        self._queues: dict[int, _Line] = {}
        self._kinds: dict[int, _Line] = {}
        for at, entrant in enumerate(scene.entrants):
            self._queues.setdefault(entrant.queue, _Line()).append(at)
            if entrant.restartable:
                self._kinds.setdefault(entrant.kind, _Line()).append(at)
        self._ends: list[tuple[float, int]] = []
        self._stays: dict[int, _Stay] = {}
        self._backfilled = 0
        self._on: dict[int, list[int]] = {}
        """The backfilled gangs on each node."""
        self._now, self._number = 0.0, 0
        for holder, end_s in zip(scene.holders, ends_s, strict=True):
            self._stay(holder.takes, holder.entrant, end_s, backfilled=holder.entrant >= 0)

    def run(self) -> list[float]:
        """Run until every entrant has started, or nothing more ends."""
        self._settle()
        while self._unknown and self._ends:
            self._now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= self._now:
                number = heapq.heappop(self._ends)[1]
                if number in self._stays:
                    self._leave(number)
            self._settle()
        return self._starts

    def _settle(self) -> None:
        """Start every gang that may start now."""
        waits = self._waits
        heads = [(first, line) for line in self._queues.values() if (first := line.first(waits)) >= 0]
        heads.sort(key=_position)
        reserved = 0
        while heads:
            entrant, line = heads.pop(0)
            if not self._start_in_turn(entrant, reserved):
                reserved |= self._entrants[entrant].usable
            elif (after := line.first(waits)) >= 0:
                insort(heads, (after, line), key=_position)
        if reserved:
            self._backfill()

    def _start_in_turn(self, entrant: int, reserved: int) -> bool:
        gang = self._entrants[entrant]
        if not gang.usable & ~reserved:
            return False
        if _fits(self._all, gang, reserved):
            takes = _place(self._all, gang, reserved)
        elif self._backfilled and _fits(self._firm, gang, reserved):
            takes = _place(self._firm, gang, reserved, self._all)
        else:
            return False
        if takes is None:
            return False
        for request, nodes in takes:
            if self._backfilled:
                for node in nodes:
                    self._make_room(node, request)
            self._all.move(nodes, request)
            if self._firm is not self._all:
                self._firm.move(nodes, request)
        self._begin(entrant, takes, backfilled=False)
        return True

    def _backfill(self) -> None:
        """Start restartable gangs on reserved nodes, in queue order. Gangs of one kind fit alike."""
        board, closed, waits = self._all, self._strict, self._waits
        offers = [(first, line) for line in self._kinds.values() if (first := line.first(waits)) >= 0]
        offers = [each for each in offers if _fits(board, self._entrants[each[0]], closed)]
        offers.sort(key=_position)
        while offers:
            entrant, line = offers.pop(0)
            gang = self._entrants[entrant]
            takes = _place(board, gang, closed) if _fits(board, gang, closed) else None
            if takes is None:
                continue
            for request, nodes in takes:
                board.move(nodes, request)
            self._begin(entrant, takes, backfilled=True)
            if (after := line.first(waits)) >= 0:
                insort(offers, (after, line), key=_position)

    def _make_room(self, node: int, request: int) -> None:
        """Let backfilled gangs leave the node, the last one first, until the pod fits there."""
        while self._on.get(node) and not self._all.has_room(node, request):
            number = self._on[node][-1]
            stay = self._stays[number]
            self._leave(number)
            entrant = stay.entrant
            self._run_s[entrant] = stay.end_s - self._now
            self._waits[entrant] = True
            self._queues[self._entrants[entrant].queue].back(entrant)
            if self._entrants[entrant].restartable:
                self._kinds[self._entrants[entrant].kind].back(entrant)

    def _begin(self, entrant: int, takes: Takes, *, backfilled: bool) -> None:
        self._waits[entrant] = False
        if self._starts[entrant] == math.inf:
            self._starts[entrant] = self._now
            self._unknown -= 1
        self._stay(takes, entrant, self._now + self._run_s[entrant], backfilled=backfilled)

    def _stay(self, takes: Takes, entrant: int, end_s: float, *, backfilled: bool) -> None:
        number = self._number
        self._number += 1
        self._stays[number] = _Stay(takes, entrant, end_s, backfilled)
        if end_s <= HORIZON_S:
            heapq.heappush(self._ends, (end_s, number))
        if backfilled:
            self._backfilled += 1
            for node in {node for _, nodes in takes for node in nodes}:
                self._on.setdefault(node, []).append(number)

    def _leave(self, number: int) -> None:
        stay = self._stays.pop(number)
        for request, nodes in stay.takes:
            self._all.move(nodes, ~request)
            if not stay.backfilled and self._firm is not self._all:
                self._firm.move(nodes, ~request)
        if stay.backfilled:
            self._backfilled -= 1
            for node in {node for _, nodes in stay.takes for node in nodes}:
                self._on[node].remove(number)


def _position(head: tuple[int, _Line]) -> int:
    return head[0]


def _fits(board: Board, gang: Entrant, closed: int) -> bool:
    return all(board.open_room(wanted, closed) >= count for wanted, _, count in gang.needs)


def _place(board: Board, gang: Entrant, closed: int, freer: Board | None = None) -> Takes | None:
    """Return nodes for all pods; None if classes compete for the same room. It takes nothing."""
    takes: list[tuple[int, Sequence[int]]] = []
    for wanted, request, count in gang.needs:
        nodes = board.nodes_for(wanted, count, closed, freer)
        if len(nodes) < count:
            return None
        takes.append((request, nodes))
    return takes
