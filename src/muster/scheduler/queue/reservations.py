"""Reserves nodes for waiting gangs, and decides which gangs behind them may use these nodes until then.

A gang reserves every node that it could use. In pools with the policy `preemptible`, other gangs may use some of them:

- All gangs may use nodes that the gang is not expected to get first, if no pod of the gang fits there now. So a small
  pod may start on a partly used node although a large gang waits. If the gang needs nodes of one rack, all gangs may
  use the other racks.
- Restartable gangs may use all its nodes, until it can start.
- TrainingJobs that are expected to end before it starts may do the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from muster.api.names import LABEL_POOL
from muster.api.scheduling import BackfillPolicy
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.placement.candidates import candidates, room_in
from muster.scheduler.placement.closed import Closed
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups
from muster.scheduler.placement.rules import is_related
from muster.scheduler.plan import Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.backfill import Start
from muster.scheduler.queue.expected import Expected
from muster.scheduler.queue.expected_domain import first_domain, together_key
from muster.scheduler.snapshot import Snapshot

STRICT_AFTER_S = 86_400.0
"""A gang that has waited this long reserves every node that it could use, so that wrong estimates do not delay it."""


class _Reservation(msgspec.Struct, frozen=True):
    """A waiting gang and its slots by class. It has reserved the node classes `numbers`."""

    gang: Gang
    groups: Groups
    numbers: Collection[int]


class Reservations:
    """Reservations of one plan. The first gang that waits for a node class reserves it.

    Args:
        snapshot: the cluster.
        matcher: matches pods to nodes.
        ledger: the free room on nodes.
        expected: when running gangs are expected to end.
        settings: the policies.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        matcher: Matcher,
        ledger: Ledger,
        expected: Expected,
        settings: Settings,
        now: float,
    ) -> None:
        self._snapshot, self._matcher, self._ledger = snapshot, matcher, ledger
        self._expected, self._settings, self._now = expected, settings, now
        self._usable: dict[tuple[PodClass, ...], list[int]] = {}
        self._all: list[_Reservation] = []
        self._gangs: dict[int, Gang] = {}
        self._pools: dict[int, str] = {}
        self._until: dict[int, float | None] = {}
        self._policies: dict[int, BackfillPolicy] = {}
        self._due: set[int] = set()
        self._starts: dict[str, float] = {}
        self._first: Closed | None = None
        self._chosen: list[set[str] | None] = []

    def __bool__(self) -> bool:
        return bool(self._gangs)

    def keep(self, gang: Gang, groups: Groups, start: Start | None) -> None:
        """Reserve every node class that the gang could use until it starts; without an end if that is unknown."""
        until = start.latest if start is not None else None
        numbers = self._could_use(groups)
        self._all.append(_Reservation(gang, groups, numbers))
        self._first = None
        for number in numbers:
            if number not in self._gangs:
                self._gangs[number], self._until[number] = gang, until
                self._policies[number] = self._settings.policy_of(self._pools[number])
                continue
            known = self._until[number]
            self._until[number] = None if known is None or until is None else min(known, until)

    def closed_to(self, end: float | None) -> Closed:
        """Return the nodes closed to a gang that ends at `end` at the latest (None: unknown)."""
        return Closed(
            frozenset(
                number
                for number, until in self._until.items()
                if until is None or end is None or end > until or self._policies[number] == "strict"
            )
        )

    def closed_to_all(self) -> Closed:
        """Return the nodes that the waiting gangs are expected to get first, or can use now.

        Later gangs may use the others without giving them back.
        """
        if self._first is None:
            self._first = self._expected_first()
        return self._first

    def closed_to_restartable(self) -> Closed:
        """Return the nodes closed to gangs that give their nodes back when they are asked."""
        return Closed(frozenset(self._not_preemptible() | self._due))

    def closed_to_expected(self, run_s: float) -> Closed:
        """Return the nodes closed to a TrainingJob that is expected to run for `run_s` seconds.

        It gives its nodes back when it is asked, but its work is then lost. So its nodes must not be needed before its
        expected end, unless that lies within the permitted delay.
        """
        closed = self._not_preemptible() | self._due
        if run_s > self._settings.backfill_delay_s:
            closed.update(number for number, gang in self._gangs.items() if self._now + run_s > self.start_of(gang))
        return Closed(frozenset(closed))

    def now_due(self, groups: Groups) -> None:
        """Let no more gangs start on what these slots could use: their gang starts as soon as others have rested."""
        self._due.update(self._could_use(groups))

    def reserves(self, gang: Gang) -> bool:
        """Return whether the gang is the first that waits for some node class."""
        return any(other is gang for other in self._gangs.values())

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

    def kept_from(self, gang: Gang) -> Closed:
        """Return the nodes that another gang reserves."""
        return Closed(frozenset(number for number, other in self._gangs.items() if other is not gang))

    def _not_preemptible(self) -> set[int]:
        return {number for number, policy in self._policies.items() if policy != "preemptible"}

    def start_of(self, gang: Gang) -> float:
        """Return when the gang is expected to start; infinite if that is unknown."""
        known = self._starts.get(gang.key)
        if known is None:
            groups = next(each.groups for each in self._all if each.gang is gang)
            known = self._starts[gang.key] = self._expected.start_of(groups, self._missing(gang, groups))
        return known

    def _missing(self, gang: Gang, groups: Groups, taken: Collection[str] = ()) -> dict[PodClass, int]:
        """Return how many pods of each class do not fit now, without the nodes `taken`."""
        missing: dict[PodClass, int] = {}
        for cls, slots in groups.items():
            banned = _unusable(gang, groups, slots).union(taken)
            missing[cls] = len(slots) - room_in(candidates(self._ledger, self._matcher, cls, banned=banned))
        return missing

    def _expected_first(self) -> Closed:
        closed, kept, nodes = self._not_preemptible() | self._due, dict[int, frozenset[PodClass]](), set[str]()
        for at, each in enumerate(self._all):
            if at == len(self._chosen):
                self._chosen.append(self._first_of(each, nodes, shared=any(number in kept for number in each.numbers)))
            chosen = self._chosen[at]
            if chosen is None:
                closed.update(each.numbers)
                continue
            nodes |= chosen
            for number in each.numbers if not any(is_related(cls, self._ledger.layer) for cls in each.groups) else ():
                kept[number] = kept.get(number, frozenset()) | frozenset(each.groups)
        return Closed(frozenset(closed), kept, frozenset(nodes))

    def _first_of(self, reservation: _Reservation, taken: Collection[str], *, shared: bool) -> set[str] | None:
        """Return the nodes that the gang is expected to get first, beside free ones; None if that is unknown.

        `taken` are nodes that gangs before it are expected to get. `shared`: these also get the nodes that are free.
        """
        gang, groups = reservation.gang, reservation.groups
        if self._now - gang.arrival > STRICT_AFTER_S:
            return None
        if any(is_related(cls, self._ledger.layer) for cls in groups):
            return self._domain_of(gang, groups) if not shared and not taken else None
        chosen = set[str]()
        missing = self._missing(gang, groups, taken)
        if shared or len(groups) > 1:  # others use the free nodes: gangs before it, or its pods of another class
            missing = {cls: len(slots) for cls, slots in groups.items()}
        for cls, count in missing.items():
            unusable = _unusable(gang, groups, groups[cls])
            found = self._expected.first_free(cls, count, unusable | chosen | set(taken))
            if found is None:
                return None
            chosen.update(found)
        return chosen

    def _domain_of(self, gang: Gang, groups: Groups) -> set[str] | None:
        """Return the nodes of the domain that a gang with rules about other pods is expected to get first.

        Only the rule that all its pods are in one domain is supported. With other rules, the nodes that the gang gets
        depend on other pods.
        """
        if len(groups) != 1:
            return None
        ((cls, slots),) = groups.items()
        key = together_key(cls, self._ledger)
        if key is None:
            return None
        unusable = _unusable(gang, groups, slots)
        return first_domain(self._snapshot, self._matcher, self._ledger, self._expected, cls, key, len(slots), unusable)

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


def _unusable(gang: Gang, groups: Groups, slots: Collection[int]) -> set[str]:
    """Return the nodes that none of these slots may use: those of other slots, and those excluded for each of them."""
    excluded = Counter(node for slot, node in gang.failed_nodes if slot in slots)
    beside = gang.nodes_beside({slot for each in groups.values() for slot in each})
    return beside | {node for node, count in excluded.items() if count == len(slots)}
