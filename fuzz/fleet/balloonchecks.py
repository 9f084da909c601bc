"""Invariants on balloons: they do not wait at rest, and do not run on nodes that must stay free of them."""

from __future__ import annotations

from fuzz.checks import PatientChecker
from fuzz.view import PodFacts

LEAVES_S = 30.0
"""Time limit for a balloon to leave a node that must be free of balloons. It is deleted at once and ends within 1 s."""
WAITS_S = 60.0
"""A balloon that the scheduler does not place is deleted after 15 s."""


class NoBalloonInTheWay(PatientChecker):
    """No balloon stays on a node that is cordoned, joining or quarantined, and none waits for a node for long."""

    name = "no balloon in the way"

    def second(self) -> None:
        """Look at every balloon."""
        now = self.view.now
        balloons = [pod for pod in self.view.pods.values() if pod.rank == 2]
        for pod in balloons:
            why = self._in_the_way(pod)
            if not why:
                self._since.pop(pod.uid, None)
                continue
            since = max(self._since.setdefault(pod.uid, now), self.disturbed_until) + self.stale_s
            if now - since > (LEAVES_S if pod.node else WAITS_S):
                self.fail(f"{pod.name} on {pod.node or 'no node'}: {why} for {now - since:.0f} s")

    def _in_the_way(self, pod: PodFacts) -> str:
        node = self.view.node(pod.node)
        if not pod.node:
            return "it waits for a node"
        if node is None or not node.ready:
            return ""  # no kubelet can end it there before the node is back or gone
        return node.takes(pod)

    def at_rest(self) -> None:
        """Fail if a balloon waits for a node."""
        waiting = sorted(pod.name for pod in self.view.pods.values() if pod.rank == 2 and not pod.node)
        if waiting:
            self.fail(f"at rest {', '.join(waiting)} waits for a node")
