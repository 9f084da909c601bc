"""Invariants: nodes are not touched without evidence, let back untested, rebooted twice, or emptied for nothing."""

from __future__ import annotations

from collections import Counter, defaultdict

from fuzz.health.checker import HealthChecker
from fuzz.health.facts import DEAD, HealthFacts, NodeState, Seen, Session, goes_out
from fuzz.health.truth import Truth
from fuzz.view import PodFacts, View
from muster.embedded.apiserver.request import Request

FAR = "reach/"
"""Keys of faults that the check of the mesh reports begin with this."""
MESH_S = 400.0
"""An agent's last report about its peers counts for this long."""


class NothingWithoutEvidence(HealthChecker):
    """A node goes out of use, or its machine is reset or rebooted, only if there is evidence against this node.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        truth: whether other nodes really cannot reach a node that they report.
        slow_s: how slow a leader's clock may be. By a slow clock, a test may end before the finding that it clears.
    """

    name = "no healthy node touched without evidence"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts, truth: Truth, slow_s: float) -> None:
        super().__init__(view, stale_s, facts)
        self._truth, self._slow_s = truth, slow_s
        self._asked: dict[tuple[str, int], float] = {}
        """By session and the entry of its rung, when the session said that the machine is asked to reboot."""
        facts.on_node.append(self._node)
        facts.on_session.append(self._session)

    def _node(self, old: NodeState | None, new: NodeState | None) -> None:
        if new is not None and goes_out(old, new):
            self.speaks_against(new, "is in quarantine")

    def _session(self, old: Session | None, new: Session) -> None:
        if new.asks_reboot:
            self._asked.setdefault((new.name, new.entry), self.view.now)

    def touched(self, node: str, session_name: str, step: str) -> None:
        """Check a request before a machine executes it."""
        state, known = self._facts.nodes.get(node), self._facts.sessions.get(session_name)
        if state is None or (known is not None and known.node_uid != state.uid):
            return  # the Node object was deleted meanwhile: the step was begun for the one before
        session = self._facts.session_of(state)
        if session is None or not any(each.rung == "ResetGPU" for each in session.episode):
            # A failed reset is evidence against the node. Once a reboot was asked for, no test counts.
            asked = self._asked.get((session.name, session.entry)) if session is not None else None
            self.speaks_against(state, f"is ordered to {step}", by=asked)
        if not state.out:
            self.fail(f"{node} is ordered to {step}, and is in use")
        if self._facts.is_kept_out(state.uid, self.stale_s):
            self.fail(f"{node} is ordered to {step}, and a person keeps it out of use")

    def speaks_against(self, node: NodeState, what: str, by: float | None = None) -> None:
        """Fail unless there is known evidence against the node; `by` as for `unanswered`."""
        session = self._facts.session_of(node)
        entries = (node.entry, *(session.episode if session is not None else ()))
        far = any(each.key == DEAD or each.key.startswith(FAR) for each in entries)
        if far and self._truth.was_unreached(node.uid, MESH_S + self.stale_s):
            return
        if any(each.event == "Requested" for each in entries) and self._facts.pleas[node.uid]:
            return
        if not self.unanswered(node.uid, by):
            self.fail(f"{node.name} {what}, and nothing speaks against it")

    def unanswered(self, uid: str, by: float | None = None) -> list[Seen]:
        """Return the evidence against a node that no passed test has cleared for some time.

        Args:
            uid: of the node.
            by: when the decision was made; now, if it was not recorded before.
        """
        known_before = (self.view.now if by is None else by) - self.stale_s
        answered = [each.time for each in self._facts.tests[uid] if each.passed and each.known_at < known_before]
        since = int(max(answered, default=0.0)) - self._slow_s  # kubelets give the end of a test in whole seconds
        return [each for each in self._facts.against[uid].values() if each.time >= since]


class NothingOutWithoutAPass(HealthChecker):
    """The taint is removed only after a passed test of this node in this boot that is newer than the taint's cause.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        spread_s: how far clocks of leaders differ. By the next leader's clock, a test may seem this much later.
    """

    name = "nothing leaves quarantine without a newer pass"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts, spread_s: float) -> None:
        super().__init__(view, stale_s, facts)
        self._spread_s = spread_s
        self._put: dict[str, tuple[float, float]] = {}
        """By UID of the node, when the taint's cause was seen, and when the taint was written."""
        self.repaired: dict[str, float] = {}
        """By UID of the node, when its GPUs were reset last."""
        facts.on_node.append(self._node)

    def _node(self, old: NodeState | None, new: NodeState | None) -> None:
        if new is None:
            return
        before = old is not None and old.uid == new.uid and old.out
        if new.out and not before:
            known = [each.time for each in self._facts.uncleared(new.uid, self.view.now)]
            self._put[new.uid] = max(known, default=0.0), self.view.now
        elif before and not new.out:
            self._left(new)

    def _left(self, node: NodeState) -> None:
        early = self.view.now - self.stale_s
        known = [each.time for each in self._facts.against[node.uid].values() if each.known_at < early]
        seen, put = self._put.pop(node.uid, (0.0, 0.0))
        since = max(seen, self.repaired.get(node.uid, 0.0), *known, 0.0)
        if self._facts.is_kept_out(node.uid, self.stale_s):
            self.fail(f"{node.name} left, and a person keeps it out of use")
        asked = [each.time for each in self._facts.pleas[node.uid] if each.known_at < early]
        since = max(since, *asked, 0.0)
        rebooted = self._facts.booted_at.get(node.uid, 0.0) > early
        passed = [
            each
            for each in self._facts.tests[node.uid]
            if each.passed and int(each.time) >= int(since) and (each.boot == node.boot or rebooted)
        ]
        if not passed:
            self.fail(f"{node.name} left, and passed no test since {since:.3f}")
        elif max(each.known_at for each in passed) < put - self.stale_s - self._spread_s:
            self.fail(f"{node.name} left, and passed no test since it was put there at {put:.3f}")


class OneStepForOneRung(HealthChecker):
    """A machine is reset or rebooted at most once for each time a session enters that rung."""

    name = "no remediation doubled"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts) -> None:
        super().__init__(view, stale_s, facts)
        self._done: Counter[tuple[str, str, int]] = Counter()

    def acts(self, session: str, step: str) -> None:
        """Check a reset or reboot when a machine executes it."""
        known = self._facts.sessions.get(session)
        rung = {"reset": "ResetGPU", "reboot": "Reboot"}[step]
        if known is None or known.state != "Open" or known.rung != rung:
            said = f"{known.state} on {known.rung}" if known is not None else "not there"
            self.fail(f"{step} of {session}, which is {said}")
            return
        key = (session, step, known.entry)
        self._done[key] += 1
        if self._done[key] > 1:
            self.fail(f"{self._done[key]} times {step} for one rung of {session}")


class PodsMoveOnce(HealthChecker):
    """Pods are evicted from nodes in quarantine, where they cannot come back: a gang leaves a node once."""

    name = "no pod is moved twice"

    def __init__(self, view: View, stale_s: float, facts: HealthFacts) -> None:
        super().__init__(view, stale_s, facts)
        self._bound_at: dict[str, float] = {}
        self._tainted_at: dict[str, float] = {}
        self._moved: defaultdict[tuple[str, int, str], set[int]] = defaultdict(set)
        self._pods: dict[str, PodFacts] = {}
        facts.on_node.append(self._node)

    def _node(self, old: NodeState | None, new: NodeState | None) -> None:
        if new is not None and goes_out(old, new):
            self._tainted_at[new.uid] = self.view.now

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Note when it was bound."""
        if new is not None:
            self._pods[new.name] = new
            if new.node and (old is None or not old.node):
                self._bound_at[new.uid] = self.view.now

    def bound_before(self, pod: PodFacts, moment: float) -> bool:
        """Returns whether the pod had its node by then."""
        return self._bound_at.get(pod.uid, moment) < moment

    def saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        """Check a request to the API server."""
        if not request.path.endswith("/eviction") or not client.startswith("controller-") or code >= 300:
            return
        pod = self._pods.get(request.path.split("/")[-2])
        if pod is None or not pod.node or not pod.gang:
            return
        node = self._facts.nodes.get(pod.node)
        session = self._facts.session_of(node) if node is not None else None
        if node is None or session is None or not session.works or session.rung != "Drain":
            return
        if not node.out:
            self.fail(f"{pod.name} is evicted from {node.name}, which is not in quarantine: it may come back")
        # A later pod comes from a scheduler that could not know yet that the node is out of use.
        if self.bound_before(pod, self._tainted_at.get(node.uid, 0.0)):
            attempts = self._moved[(session.name, session.entry, pod.gang)]
            attempts.add(pod.attempt)
            if len(attempts) > 1:
                self.fail(f"{pod.gang} leaves {node.name} twice: attempts {sorted(attempts)}")
