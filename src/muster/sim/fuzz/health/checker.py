"""What checkers of node health have in common."""

from __future__ import annotations

from muster.sim.fuzz.checks import Checker
from muster.sim.fuzz.health.facts import HealthFacts
from muster.sim.fuzz.view import View


class HealthChecker(Checker):
    """Knows node health beside what the view holds.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        facts: of node health.
    """

    def __init__(self, view: View, stale_s: float, facts: HealthFacts) -> None:
        super().__init__(view, stale_s)
        self._facts = facts
