"""Observations in, incidents out: for checks that count or sample, as kernellog.Scanner does for lines."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import INCIDENT_S_MAX, PAUSE_S

OPEN_MAX: Final = 1024
"""Different things held at once; further ones are counted in a finding `agent/CHECK/overflow`."""


class Incidents:
    """Groups what one check observes: without a pause it is the same incident.

    Args:
        check: name of the check, for the finding about too many.
        period_s: how often it looks: a pause is never shorter than two looks and a half.
    """

    def __init__(self, check: str, period_s: float = 0.0) -> None:
        self._check = check
        self._pause_s = max(PAUSE_S, 2.5 * period_s)
        self._longest_s = max(INCIDENT_S_MAX, 4 * self._pause_s)
        self._newest: dict[tuple[str, str, str], Finding] = {}
        self._changed: dict[tuple[str, str, str, float], Finding] = {}

    def observe(
        self, check: str, component: str, code: str, now_s: float, *, count: int = 1, message: str = ""
    ) -> None:
        """Count something seen now; the message of an incident is that of its beginning."""
        key = (check, component, code)
        if key not in self._newest and len(self._newest) >= OPEN_MAX:
            key, message = ("agent", self._check, "overflow"), "more different findings than are held at once"
        finding = self._newest.get(key)
        if finding is None or not self._goes_on(finding, now_s):
            check, component, code = key
            finding = Finding(
                check=check, component=component, code=code, count=count, first_s=now_s, last_s=now_s, message=message
            )
        else:
            finding = msgspec.structs.replace(finding, count=finding.count + count, last_s=max(finding.last_s, now_s))
        self._newest[key] = finding
        self._changed[(*key, finding.first_s)] = finding

    def take(self, now_s: float) -> list[Finding]:
        """Return incidents that began or grew since this was last called, oldest first."""
        taken = sorted(self._changed.values(), key=lambda finding: (finding.first_s, finding.key))
        self._changed.clear()
        for key in [key for key, finding in self._newest.items() if not self._goes_on(finding, now_s)]:
            del self._newest[key]
        return taken

    def _goes_on(self, finding: Finding, now_s: float) -> bool:
        # Also false where the clock was set back by more than a pause: what then is seen is told by its own time.
        return (
            finding.first_s - self._pause_s
            <= now_s
            <= min(finding.last_s + self._pause_s, finding.first_s + self._longest_s)
        )
