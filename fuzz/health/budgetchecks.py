"""Invariants on budgets: nodes out of use or being worked on; a shared fault does not take out the fleet."""

from __future__ import annotations

from collections import defaultdict

from fuzz.health.checker import HealthChecker
from fuzz.health.facts import HealthFacts, NodeState, Session
from fuzz.health.mishaps import DRIVERS
from fuzz.health.scenario import HealthScenario
from fuzz.view import View
from muster.embedded.apiserver.request import Request

SLACK_S = 20.0
"""Time from a decision until the API server has the write."""


class NeverOverBudgetOrBreaker(HealthChecker):
    """Budgets and breakers hold when a node goes out of use or is worked on. The taint is written before the session.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        scenario: has the limits.
    """

    name = "never over a budget or breaker"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts, scenario: HealthScenario) -> None:
        super().__init__(view, stale_s, facts)
        self._scenario = scenario
        spread = max(scenario.skew_s) - min(scenario.skew_s)
        self._window_s = scenario.window_s - spread - SLACK_S
        self._lately: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        """By pool, when nodes went out of use, and their UIDs."""
        self._out: dict[str, NodeState] = {}
        """By UID, nodes out of use that were in use before."""
        facts.on_session.append(self._session)
        facts.on_node.append(self._node)

    def _node(self, old: NodeState | None, new: NodeState | None) -> None:
        gone = old is not None and (new is None or new.uid != old.uid)
        if old is not None and gone and self._out.pop(old.uid, None) is not None:
            self._gone(old)
        if new is not None:
            self._look(new)

    def _gone(self, node: NodeState) -> None:
        """Forget a node that was deleted just before its session could say that it is out: breakers count sessions."""
        session = self._facts.session_of(node)
        if session is None or node.entry.generation > session.generation:
            since = self.view.now - self.stale_s - SLACK_S
            lately = self._lately[node.pool]
            self._lately[node.pool] = [(time, uid) for time, uid in lately if uid != node.uid or time < since]

    def _session(self, old: Session | None, new: Session) -> None:
        node = self._facts.nodes.get(new.node)
        if node is None or node.uid != new.node_uid:
            return
        self._look(node)
        if new.works and not (old is not None and old.works):
            there = ((each, self._facts.nodes.get(each.node)) for each in self._facts.sessions.values())
            working = [other for each, other in there if each.works and other and other.uid == each.node_uid]
            self._within("worked on", node, working, self._scenario.working)

    def _look(self, node: NodeState) -> None:
        session = self._facts.session_of(node)
        if not self._facts.is_out(node):
            self._out.pop(node.uid, None)
        elif node.uid in self._out:
            self._out[node.uid] = node
        elif node.entry.event != "Joining" and not (session is not None and session.joining):
            self._out[node.uid] = node
            self._went_out(node, asked=session is not None and session.asked_for)

    def _went_out(self, node: NodeState, *, asked: bool) -> None:
        """Check the limits when a node goes out of use. Requests of operators count, but no limit stops them."""
        out, now = list(self._out.values()), self.view.now
        lately = self._lately[node.pool] = [
            *(one for one in self._lately[node.pool] if one[0] > now - self._window_s),
            (now, node.uid),
        ]
        if asked:
            return
        self._within("out of use", node, out, self._scenario.quarantined)
        if len(lately) > self._scenario.breaker:
            self.fail(f"{node.name}: {len(lately)} nodes of its pool within {self._scenario.window_s:g} s")
        shared = self._scenario.shared
        alone = [other.name for other in out if self._has_only_the_driver(other)]
        if shared and len(alone) >= shared and node.name in alone:
            self.fail(f"{node.name} is out of use for what many have: {', '.join(alone)}")

    def _has_only_the_driver(self, node: NodeState) -> bool:
        codes = {each.code for each in self._facts.uncleared(node.uid, self.view.now)}
        return codes == {f"xid/{DRIVERS}"}

    def _within(self, what: str, node: NodeState, nodes: list[NodeState], limits: tuple[int, int, int]) -> None:
        team = sum(each.team == node.team for each in nodes) if node.team else 0
        pool = sum(each.pool == node.pool for each in nodes)
        whose = ("in all", f"of pool {node.pool}", f"of team {node.team}")
        for words, count, most in zip(whose, (len(nodes), pool, team), limits, strict=True):
            if count > most:
                self.fail(f"{node.name}: {count} nodes {words} are {what}, {most} may be")


class NoWriteOfOthersUndone(HealthChecker):
    """Controllers neither cordon nor uncordon, and delete no node."""

    name = "no cordon of others undone, no node deleted"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts) -> None:
        super().__init__(view, stale_s, facts)
        self._cordoned: dict[str, bool] = {}
        facts.on_node.append(self._node)

    def _node(self, old: NodeState | None, new: NodeState | None) -> None:
        if new is not None:
            self._cordoned[new.name] = new.cordoned

    def saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        """Check a request to the API server."""
        if not client.startswith("controller-") or not request.path.startswith("/api/v1/nodes/") or code >= 300:
            return
        if request.method == "DELETE" or (request.method in ("PATCH", "PUT") and b'"unschedulable"' in request.body):
            self.fail(f"{client} sent {request.method} {request.path}")
