"""Judges node health with hysteresis, so that a flapping node does not move other nodes.

A node is broken after it has been unwell for a while, and healthy again after it has been well for a longer while. In
between it keeps its previous state. Times come from this process's clock, never from the node object, because clocks
of nodes differ. A new leader starts from the present state.
"""

from __future__ import annotations

import heapq

from muster.api.quarantine import quarantined
from muster.kube.objects.node import Node

BROKEN_AFTER_S = 15.0
HEALTHY_AFTER_S = 300.0


def well(node: Node) -> bool:
    """Return whether pods can start there now: ready, not cordoned, not in quarantine, not being deleted."""
    closed = node.spec.unschedulable or quarantined(node) or node.metadata.deletion_timestamp is not None
    return node.ready and not closed


class _Course:
    """Health history of a node: well or not, since when, its judged state, and whether it ever was well."""

    __slots__ = ("broken", "ever_well", "since", "well")

    def __init__(self, is_well: bool, now: float) -> None:
        self.well, self.since = is_well, now
        self.broken, self.ever_well = not is_well, is_well


class Wellness:
    """Judges the health of nodes. Times are in seconds, of one clock.

    Args:
        broken_after_s: a node that was unwell for this long is broken.
        healthy_after_s: a node that was well for this long is healthy again.
    """

    def __init__(self, broken_after_s: float = BROKEN_AFTER_S, healthy_after_s: float = HEALTHY_AFTER_S) -> None:
        self._broken_after_s, self._healthy_after_s = broken_after_s, healthy_after_s
        self._courses: dict[str, _Course] = {}
        self._deadlines: list[tuple[float, str]] = []

    @property
    def wake_at(self) -> float | None:
        """When to call `due` again; None if no change is pending."""
        return self._deadlines[0][0] if self._deadlines else None

    def look(self, node: Node, now: float) -> bool:
        """Record the state of a node; return whether it counts as broken."""
        is_well, course = well(node), self._courses.get(node.name)
        if course is None:
            course = self._courses[node.name] = _Course(is_well, now)
        elif course.well != is_well:
            course.well, course.since = is_well, now
            if is_well and not course.ever_well:  # a new node becomes healthy at once
                course.broken, course.ever_well = False, True
            elif course.broken == is_well:
                heapq.heappush(self._deadlines, (now + self._wait_s(course), node.name))
        return course.broken

    def forget(self, name: str) -> None:
        """Remove a node."""
        self._courses.pop(name, None)

    def due(self, now: float) -> dict[str, bool]:
        """Return the nodes whose state changes now: name -> whether broken."""
        found: dict[str, bool] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, name = heapq.heappop(self._deadlines)
            course = self._courses.get(name)
            if course is not None and course.broken == course.well and course.since + self._wait_s(course) <= now:
                course.broken = found[name] = not course.well
        return found

    def _wait_s(self, course: _Course) -> float:
        return self._healthy_after_s if course.well else self._broken_after_s
