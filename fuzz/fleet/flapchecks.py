"""Invariant: nodes do not change teams because of a short outage of a node."""

from __future__ import annotations

from collections.abc import Mapping

from fuzz.checks import Checker
from fuzz.fleet.frontdoor import FrontDoor
from fuzz.fleet.people import QUARANTINE, recorded_team
from fuzz.fleet.shares import Shares
from fuzz.view import NodeFacts, View
from muster.embedded.apiserver.request import Request
from muster.embedded.item import Item
from muster.embedded.objects import decode
from muster.sim.virtual.network import Trace

BROKEN_AFTER_S = 15.0
HEALTHY_AFTER_S = 300.0
"""A node counts as broken after BROKEN_AFTER_S, and as healthy again after HEALTHY_AFTER_S (docs/teams.md)."""
BEGINS_S = 30.0
"""A new leader makes its first plan within this time: it first waits for requests of the previous one."""
TIMING_S = 1.0
"""A leader may see the start and the end of an outage with different delays."""


class NothingMovesForAFlap(Checker):
    """If every team has its share, a node changes teams only after another node was broken for long enough.

    A new leader starts from the nodes' present state. The check applies once the last configuration is in force, in
    pools whose numbers leave no choice: pools with a percentage for at most one team.

    Args:
        view: what the API server holds.
        door: reports who writes nodes.
        trace: reports who leads.
        stale_s: as for all.
        shares: the number of nodes of each team, by pool.
        begins: when every leader knows these numbers.
    """

    name = "nothing moves for a node that was away for a moment"

    def __init__(
        self, view: View, door: FrontDoor, trace: Trace, stale_s: float, shares: Mapping[str, Shares], begins: float
    ) -> None:
        super().__init__(view, stale_s)
        self._shares = {pool: each for pool, each in shares.items() if len(each.percent) <= 1}
        self._begins = begins
        self._leader, self._leads_since = "", -1e9
        trace.listeners.append(self._saw)
        door.node_written.append(self._written)

    def _saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if code < 300 and request.method in ("POST", "PUT") and request.path.endswith("/leases/muster-controller"):
            holder = decode(request.body)["spec"].get("holderIdentity", "")
            if holder and holder != self._leader:
                self._leader, self._leads_since = holder, now

    def _written(self, client: str, old: Item | None, new: Item | None) -> None:
        if old is None or new is None or old.uid != new.uid or not client.startswith("controller-"):
            return
        before, after = recorded_team(old.object()), recorded_team(new.object())
        pool = new.labels.get("pool", "")
        if before == after or pool not in self._shares or self.view.now < self._begins:
            return
        owners = {each.name: each.labels.get("muster.dev/team", "") for each in self._nodes(pool)} | {new.name: before}
        if self._is_met(list(owners.values()), self._shares[pool]) and not self._is_excused(owners):
            self.fail(f"{client} gave {new.name} of {before or 'no team'} to {after or 'no team'}: each had his share")

    def _nodes(self, pool: str) -> list[NodeFacts]:
        nodes = [node for name in self.view.nodes if (node := self.view.node(name)) is not None]
        return [node for node in nodes if node.labels.get("pool") == pool]

    def _is_met(self, owners: list[str], shares: Shares) -> bool:
        due = shares.owned(len(owners))
        return all(owners.count(team) == due.get(team, 0) for team in {*owners, *due} if team)

    def _is_excused(self, names: Mapping[str, str]) -> bool:
        """Returns whether one of the nodes may count as broken, now or until recently."""
        since = self.view.now - HEALTHY_AFTER_S - self.stale_s
        for name in names:
            for start, end in self._outages(name):
                began_with_it = start <= self._leads_since + BEGINS_S + self.stale_s and end >= self._leads_since
                if end >= since and (began_with_it or end - start >= BROKEN_AFTER_S - self.stale_s - TIMING_S):
                    return True
        return False

    def _outages(self, name: str) -> list[tuple[float, float]]:
        """Returns the periods in which the node was not well."""
        found: list[tuple[float, float]] = []
        for version in self.view.nodes[name]:
            if is_well(version):
                continue
            until = min(version.until, self.view.now)
            if found and found[-1][1] == version.since:
                found[-1] = found[-1][0], until
            else:
                found.append((version.since, until))
        return found


def is_well(node: NodeFacts) -> bool:
    """Returns whether pods can go to a node, apart from teams' own taints."""
    return node.ready and not node.unschedulable and not any(taint["key"] == QUARANTINE for taint in node.taints)
