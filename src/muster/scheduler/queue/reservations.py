"""Reserves nodes for waiting gangs, by node class, and until when other gangs may run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muster.api.names import LABEL_POOL
from muster.api.scheduling import BackfillPolicy
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.backfill import Start
from muster.scheduler.snapshot import Snapshot


class Reservations:
    """Reservations of one plan. The first gang that waits for a node class reserves it."""

    def __init__(self, snapshot: Snapshot, matcher: Matcher, policy_of: Callable[[str], BackfillPolicy]) -> None:
        self._snapshot, self._matcher, self._policy_of = snapshot, matcher, policy_of
        self._usable: dict[tuple[PodClass, ...], list[int]] = {}
        self._gangs: dict[int, Gang] = {}
        self._pools: dict[int, str] = {}
        self._until: dict[int, float | None] = {}
        self._policies: dict[int, BackfillPolicy] = {}
        self._due: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._gangs)

    def keep(self, gang: Gang, groups: Groups, start: Start | None) -> None:
        """Reserve every node class that the gang could use until it starts; without an end if that is unknown."""
        until = start.latest if start is not None else None
        for number in self._could_use(groups):
            if number not in self._gangs:
                self._gangs[number], self._until[number] = gang, until
                self._policies[number] = self._policy_of(self._pools[number])
                continue
            known = self._until[number]
            self._until[number] = None if known is None or until is None else min(known, until)

    def closed_to(self, end: float | None) -> set[int]:
        """Return the node classes closed to a gang that would end at `end` (None: never)."""
        return {
            number
            for number, until in self._until.items()
            if until is None or end is None or end > until or self._policies[number] == "strict"
        }

    def closed_to_restartable(self) -> set[int]:
        """Return the node classes closed to gangs that give their nodes back when they are asked."""
        return {number for number, policy in self._policies.items() if policy != "preemptible"} | self._due

    def now_due(self, groups: Groups) -> None:
        """Let no more gangs start on what these slots could use: their gang starts as soon as others have rested."""
        self._due.update(self._could_use(groups))

    def first_on(self, nodes: Iterable[str]) -> Gang | None:
        """Return the first gang in the queue for which one of the nodes is reserved; None without one."""
        known = (self._snapshot.nodes[name].node_class for name in nodes)
        found = (self._gangs.get(each.number) for each in known if each is not None)
        return min((gang for gang in found if gang is not None), key=lambda gang: gang.order, default=None)

    def in_the_way(self, gang: Gang, groups: Groups) -> Gang | None:
        """Return the other, earlier gang that reserves nodes which these slots could use."""
        for number in self._could_use(groups):
            other = self._gangs.get(number)
            if other is not None and other is not gang:
                return other
        return None

    def kept_from(self, gang: Gang) -> set[int]:
        """Return the node classes that another gang reserves."""
        return {number for number, other in self._gangs.items() if other is not gang}

    def _could_use(self, groups: Groups) -> list[int]:
        """Return the numbers of the node classes that any of these pod classes could use."""
        pods = tuple(groups)
        found = self._usable.get(pods)
        if found is None:
            classes = {bucket.node_class.number: bucket.node_class for bucket in self._snapshot.buckets.values()}
            self._pools.update({number: each.labels.get(LABEL_POOL, "") for number, each in classes.items()})
            found = self._usable[pods] = [
                number
                for number, node_class in classes.items()
                if any(self._matcher.match(cls, node_class).reason is None for cls in pods)
            ]
        return found
