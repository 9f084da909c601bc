"""Limits of remediation: budgets for nodes out of use and for nodes under repair, and the breaker of each pool.

All numbers are computed from the sessions, so a new controller gets the same numbers as the previous one. Joining
nodes do not count in any number, because they are not capacity yet.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.api.names import remediation_name
from muster.api.node_remediation import HeldBy
from muster.fleet.remediation.config import Limits, RemediationConfig, amount_of, percent_of
from muster.fleet.remediation.ladder.record import is_put, is_quarantined, pool_of, quarantines, was_in_use
from muster.fleet.remediation.ladder.rungs import WORKING
from muster.fleet.remediation.snapshot import RemediationNode, View

NOTHING_HOLDS: Final[tuple[HeldBy | None, str]] = (None, "")
"""The value that means: no limit delays the node."""


class Counted:
    """Counts nodes in all, by pool and by team."""

    def __init__(self) -> None:
        self.all = 0
        self.pool: Counter[str] = Counter()
        self.team: Counter[str] = Counter()

    def add(self, node: RemediationNode) -> None:
        """Count one more node."""
        self.all += 1
        self.pool[node.pool] += 1
        if node.team:
            self.team[node.team] += 1


class Room:
    """The remaining budgets at one moment; each grant reduces them at once.

    Args:
        view: the state of everything.
        now: seconds since the epoch.
    """

    def __init__(self, view: View, now: float) -> None:
        self._config: RemediationConfig = view.config
        self._total, self._out, self._working = Counted(), Counted(), Counted()
        self._lately: Counter[str] = Counter()
        self._used = {each.spec.node_uid for each in view.sessions.values() if was_in_use(each.status)}
        for node in view.nodes.values():
            if not self._joins(node):
                self._total.add(node)
        since = now - self._config.breaker.window_s
        self._names = out = set[str]()  # includes nodes on their way back: until the taint is gone, they take no pods
        for node in view.nodes.values():
            if node.record is not None and not self._joins(node):
                out.add(node.name)
                self._out.add(node)
                self._lately[node.pool] += is_unwritten(view, node)
        for session in view.sessions.values():
            known = view.nodes.get(session.spec.node)
            there = known is not None and known.uid == session.spec.node_uid
            pool = known.pool if known is not None and there else pool_of(session)
            self._lately[pool] += sum(time > since for time in quarantines(session))
            if known is None or not there or session.status.state == "Released":
                continue
            if is_quarantined(session.status) and not self._joins(known) and known.name not in out:
                self._out.add(known)
            if session.status.state == "Open" and session.status.rung in WORKING:
                self._working.add(known)

    def _joins(self, node: RemediationNode) -> bool:
        """Return whether the node is not capacity yet. A node that was in use stays counted."""
        mark = node.record  # written before the session, with the same event
        was_in_use = mark is not None and mark.event != "Joining"
        return node.joining and not was_in_use and node.uid not in self._used

    def why_not_quarantine(self, node: RemediationNode) -> tuple[HeldBy | None, str]:
        """Return the limit that delays the node's quarantine, and a text; `NOTHING_HOLDS` if none does."""
        if node.joining:
            return NOTHING_HOLDS
        most = self.breaker_limit(node.pool)
        if self._lately[node.pool] >= most:
            breaker = self._config.breaker
            what = f"no more than {most} nodes of {_named(node.pool)} in {breaker.window_s:g} s ({breaker.share})"
            return "Breaker", f"the breaker of its pool is open: {what}"
        if node.name in self._names:
            return NOTHING_HOLDS  # it is out of use already, from an earlier session
        return self._short(self._config.quarantined, self._out, node, "out of use")

    def take_quarantine(self, node: RemediationNode) -> None:
        """Count the node as quarantined."""
        if not node.joining:
            self._lately[node.pool] += 1
            if node.name not in self._names:
                self._names.add(node.name)
                self._out.add(node)

    def why_not_work(self, node: RemediationNode) -> tuple[HeldBy | None, str]:
        """Return the limit that delays the node's drain or a later rung, and a text; `NOTHING_HOLDS` if none does."""
        return self._short(self._config.working, self._working, node, "worked on")

    def take_work(self, node: RemediationNode) -> None:
        """Count the node as worked on."""
        self._working.add(node)

    def breaker_limit(self, pool: str) -> int:
        """Return how many nodes of the pool may go into quarantine within the window."""
        breaker = self._config.breaker
        return max(breaker.nodes, int(self._total.pool[pool] * percent_of(breaker.share) / 100))

    def _short(self, limits: Limits, taken: Counted, node: RemediationNode, what: str) -> tuple[HeldBy | None, str]:
        total = self._total
        checks = [
            ("the cluster", taken.all, amount_of(limits.all, total.all)),
            (_named(node.pool), taken.pool[node.pool], amount_of(limits.pool, total.pool[node.pool])),
        ]
        if node.team:
            checks.append((f"team {node.team}", taken.team[node.team], amount_of(limits.team, total.team[node.team])))
        for whose, count, most in checks:
            if count >= most:
                return "Budget", f"no more than {most} nodes of {whose} may be {what} at once"
        return NOTHING_HOLDS


def is_unwritten(view: View, node: RemediationNode) -> bool:
    """Return whether the node has our taint although no session records it yet."""
    name = remediation_name(node.name, node.uid)
    session = view.sessions.get(name)
    if session is None:
        return node.record is not None and node.record.session == name
    return is_put(session, node)


def _named(pool: str) -> str:
    return f"pool {pool}" if pool else "no pool"
