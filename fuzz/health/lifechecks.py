"""Invariants: a healthy machine is not replaced, and a live node is not treated as dead."""

from __future__ import annotations

from fuzz.health.checker import HealthChecker
from fuzz.health.facts import HealthFacts, Session
from fuzz.health.mishaps import REBOOTS, REPLACES
from fuzz.health.nodechecks import NothingWithoutEvidence, PodsMoveOnce
from fuzz.health.truth import Truth
from fuzz.view import View
from fuzz.weather import LATEST_S

INCIDENTS = 2
"""If a code that asks for a reboot is reported this often, the default policy replaces the machine."""
LONG_S = 300.0
"""A rung that was entered because of how a machine was is left again within this: the longest deadline of one."""


class NoHealthyMachineReplaced(HealthChecker):
    """A machine is replaced only if its node is in quarantine, empty and on the rung Replace, and if it is broken.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        truth: how machines are.
        evidence: knows the evidence against nodes.
        moves: knows when pods were bound to a node.
    """

    name = "no healthy machine replaced"

    def __init__(
        self,
        view: View,
        stale_s: float,
        facts: HealthFacts,
        truth: Truth,
        evidence: NothingWithoutEvidence,
        moves: PodsMoveOnce,
    ) -> None:
        super().__init__(view, stale_s, facts)
        self._truth, self._evidence, self._moves = truth, evidence, moves
        self._on_rung: dict[str, float] = {}
        self.count = 0
        facts.on_session.append(self._session)

    def _session(self, old: Session | None, new: Session) -> None:
        """Note until when a session was on the rung."""
        if old is not None and old.state == "Open" and old.rung == "Replace":
            self._on_rung[old.node_uid] = self.view.now

    def replaced(self, name: str, uid: str) -> None:
        """Check a machine before it is replaced."""
        self.count += 1
        state = self._facts.nodes.get(name)
        if state is None or state.uid != uid:
            return  # whatever the order was for, it has no Node any more: nothing can be on it
        session = self._facts.session_of(state)
        now_on = session is not None and session.state == "Open" and session.rung == "Replace"
        # What had been sent before may arrive when the rung has been left.
        if not now_on and self._on_rung.get(uid, float("-inf")) < self.view.now - LATEST_S - 1.0:
            said = f"{session.state} on {session.rung}" if session is not None else "not there"
            self.fail(f"{name} is replaced, and its session is {said}")
        if not state.out:
            self.fail(f"{name} is replaced, and is in use")
        down = self._truth.was_as_dead(uid, LONG_S + self.stale_s)
        if not down:
            self._evidence.speaks_against(state, "is replaced")
        bad = any(each.code == f"xid/{REPLACES}" for each in self._evidence.unanswered(uid))
        again = [each for each in self._facts.against[uid].values() if each.code == f"xid/{REBOOTS}"]
        bad |= len(again) >= INCIDENTS  # the policy's rule xid-79-again
        machine = self._truth.ward.machines[name]
        if not (down or bad or machine.broken or machine.has_failed_repair):
            self.fail(f"{name} is replaced, and nothing is wrong with it")
        if self._truth.was_down(uid, LATEST_S):
            return
        for pod in self.view.on_node[name].values():
            if pod.gang and pod.live and self._moves.bound_before(pod, self.view.now - self.stale_s):
                self.fail(f"{name} is replaced, and {pod.name} runs on it")


class NoLiveNodeTakenForDead(HealthChecker):
    """A node is treated as dead only if it is off, or if it cannot be distinguished from a node that is off.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        truth: how machines are.
    """

    name = "no false deaths"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts, truth: Truth) -> None:
        super().__init__(view, stale_s, facts)
        self._truth = truth
        self.found = set[str]()
        """UIDs of nodes that were treated as dead."""
        facts.on_session.append(self._session)

    def _session(self, old: Session | None, new: Session) -> None:
        if not new.found_dead or (old is not None and old.found_dead):
            return
        self.found.add(new.node_uid)
        node = self._facts.nodes.get(new.node)
        if node is None or node.uid != new.node_uid:
            return  # its Node was deleted, and the leader has not heard of that yet: this session touches no node
        if not self._truth.was_as_dead(new.node_uid, self.stale_s):
            self.fail(f"{new.node} is up, and taken for dead: {new.message}")
