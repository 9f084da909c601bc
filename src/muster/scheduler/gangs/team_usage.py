"""Counts how teams' nodes are used, updated node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from muster.api.lending import NodeUser, State, TeamNodes, by_team, states_of
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.nodes.node_record import NodeRecord


class TeamCounts:
    """Counts of nodes by team and state. The cost of an event depends on what it changes.

    Attributes:
        stamp: changes with every update.
    """

    def __init__(self) -> None:
        self.stamp = 0
        self._known: dict[str, tuple[str, frozenset[NodeUser]]] = {}
        self._counts: Counter[tuple[str, State]] = Counter()

    def look(
        self,
        names: Iterable[str],
        owners: Mapping[str, str],
        nodes: Mapping[str, NodeRecord],
        pods: Mapping[str, PodRecord],
        gangs: Mapping[str, Gang],
    ) -> None:
        """Update the counts for these nodes, which may have changed."""
        if not owners and not self._known:  # most clusters have no teams
            return
        for name in names:
            before = self._known.get(name)
            owner = owners.get(name, "")
            after = (owner, _users(nodes[name], pods, gangs)) if owner else None
            if before == after:
                continue
            self.stamp += 1
            if before is not None:
                del self._known[name]
                for state in states_of(*before):
                    self._counts[state] -= 1
            if after is not None:
                self._known[name] = after
                for state in states_of(*after):
                    self._counts[state] += 1

    def counts(self) -> dict[str, TeamNodes]:
        """Return the counts of teams that own or borrow nodes."""
        return by_team(self._counts)


def _users(node: NodeRecord, pods: Mapping[str, PodRecord], gangs: Mapping[str, Gang]) -> frozenset[NodeUser]:
    """Return the teams whose gangs have pods or slots on the node; balloons do not count."""
    keys = {pods[uid].gang for uid in node.pods if uid in pods}
    keys.update(key for key, _ in node.holds)
    found = (gangs[key].traits for key in keys if key in gangs)
    return frozenset(
        NodeUser(traits.team, traits.rank is Rank.BORROWED) for traits in found if traits.rank is not Rank.BALLOON
    )
