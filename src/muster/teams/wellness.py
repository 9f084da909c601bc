"""Whether a node is of use, judged so that one that comes and goes does not move others back and forth.

A node is broken once it has not been well for a while, and healthy again once it has been well for a longer while: in
between it counts as what it was. When something changed is told by our own clock, never by the times in the node:
clocks of nodes differ. A new leader begins with what it sees.
"""

from __future__ import annotations

import heapq

import msgspec

from muster.api.names import ANNOTATION_TEAM_RECORD
from muster.api.quarantine import quarantined
from muster.kube.node import Node

BROKEN_AFTER_S = 15.0
HEALTHY_AFTER_S = 300.0


def well(node: Node) -> bool:
    """Whether pods can go there now: it is ready, not cordoned, not in quarantine, not being deleted."""
    closed = node.spec.unschedulable or quarantined(node) or node.metadata.deletion_timestamp is not None
    return node.ready and not closed


class _Course:
    """What was seen of one node: how it is, since when, how it counts, and whether it ever was well."""

    __slots__ = ("broken", "ever_well", "since", "well")

    def __init__(self, is_well: bool, now: float) -> None:
        self.well, self.since = is_well, now
        self.broken, self.ever_well = not is_well, is_well


class Wellness:
    """Follows nodes. Times in seconds, of one clock.

    Args:
        broken_after_s: a node that has not been well for so long is broken.
        healthy_after_s: one that has been well for so long is healthy again.
    """

    def __init__(self, broken_after_s: float = BROKEN_AFTER_S, healthy_after_s: float = HEALTHY_AFTER_S) -> None:
        self._broken_after_s, self._healthy_after_s = broken_after_s, healthy_after_s
        self._courses: dict[str, _Course] = {}
        self._deadlines: list[tuple[float, str]] = []

    @property
    def wake_at(self) -> float | None:
        """When to ask `due` again; None where nothing is on its way."""
        return self._deadlines[0][0] if self._deadlines else None

    def look(self, node: Node, now: float) -> bool:
        """Take note of a node; whether it counts as broken."""
        is_well, course = well(node), self._courses.get(node.name)
        if course is None:
            course = self._courses[node.name] = _Course(is_well, now)
        elif course.well != is_well:
            course.well, course.since = is_well, now
            if is_well and not course.ever_well:  # it has just joined
                course.broken, course.ever_well = False, True
            elif course.broken == is_well:
                heapq.heappush(self._deadlines, (now + self._wait_s(course), node.name))
        return course.broken

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._courses.pop(name, None)

    def due(self, now: float) -> dict[str, bool]:
        """Nodes that count differently from now on: whether as broken."""
        found: dict[str, bool] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, name = heapq.heappop(self._deadlines)
            course = self._courses.get(name)
            if course is not None and course.broken == course.well and course.since + self._wait_s(course) <= now:
                course.broken = found[name] = not course.well
        return found

    def _wait_s(self, course: _Course) -> float:
        return self._healthy_after_s if course.well else self._broken_after_s


def lean_node(node: Node) -> Node:
    """Return the node less what allocation never reads: a cache of every node is mostly made of that."""
    record = node.metadata.annotations.get(ANNOTATION_TEAM_RECORD)
    annotations = {ANNOTATION_TEAM_RECORD: record} if record is not None else {}
    status = type(node.status)(conditions=tuple(each for each in node.status.conditions if each.type == "Ready"))
    meta = msgspec.structs.replace(node.metadata, annotations=annotations)
    return msgspec.structs.replace(node, metadata=meta, status=status)
