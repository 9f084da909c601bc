"""The base of checkers of node health."""

from __future__ import annotations

from fuzz.checks import Checker
from fuzz.health.facts import HealthFacts
from fuzz.view import View


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
