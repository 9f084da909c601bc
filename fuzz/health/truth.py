"""The true state of machines, whatever is reported about them; read each second."""

from __future__ import annotations

from fuzz.health.checker import HealthChecker
from fuzz.health.facts import HealthFacts
from fuzz.health.ward import Ward
from fuzz.view import View
from muster.sim.nodes import SimNodes

LOOKS_S = 1.0


class Truth(HealthChecker):
    """Remembers by UID of the node when its machine was last in each state.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
        dead: so many nodes in use may be cut off together and be taken for dead, because the cause cannot be seen.
    """

    name = "truth"
    ward: Ward
    nodes: SimNodes

    def __init__(self, view: View, stale_s: float, facts: HealthFacts, dead: int) -> None:
        super().__init__(view, stale_s, facts)
        self._dead = dead
        self._down: dict[str, float] = {}
        self._alone: dict[str, float] = {}
        self._split: dict[str, float] = {}

    def second(self) -> None:
        """Record the state of all machines."""
        network = self.ward.agents.network
        for name, state in self._facts.nodes.items():
            node = self.nodes.nodes.get(name)
            if node is None or not node.alive:
                self._down[state.uid] = self.view.now
            elif self._is_alone(name):
                self._alone[state.uid] = self.view.now
            if network.is_split():
                self._split[state.uid] = self.view.now

    def _is_alone(self, name: str) -> bool:
        """Returns whether it is cut off from all but a few others; nodes that are out of use anyway do not count."""
        states = (self._facts.nodes.get(each) for each in self.ward.agents.network.alone_with(name))
        return 0 < sum(each is not None and not each.out for each in states) <= self._dead

    def was_down(self, uid: str, within_s: float) -> bool:
        """Returns whether the machine was off, or between two boots."""
        return self._lately(self._down, uid, within_s)

    def was_as_dead(self, uid: str, within_s: float) -> bool:
        """Returns whether it could not be distinguished from a machine that is off."""
        return self.was_down(uid, within_s) or self._lately(self._alone, uid, within_s)

    def was_unreached(self, uid: str, within_s: float) -> bool:
        """Returns whether others could not reach it."""
        return self.was_as_dead(uid, within_s) or self._lately(self._split, uid, within_s)

    def _lately(self, seen: dict[str, float], uid: str, within_s: float) -> bool:
        return seen.get(uid, float("-inf")) >= self.view.now - within_s - LOOKS_S
