"""Groups observations into incidents, for checks that count or sample; kernellog.Scanner does the same for lines."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import INCIDENT_S_MAX, PAUSE_S

OPEN_MAX: Final = 1024
"""The most different incidents held at once; further ones are counted in a finding `agent/CHECK/overflow`."""


class Incidents:
    """Groups the observations of one check: observations without a pause belong to one incident.

    Args:
        check: name of the check, for the overflow finding.
        period_s: the check's interval. A pause is at least two and a half intervals.
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
        """Count an observation. An incident keeps the message of its first observation."""
        key = (check, component, code)
        if key not in self._newest and len(self._newest) >= OPEN_MAX:
            key, message = ("agent", self._check, "overflow"), "more different findings than are held at once"
        finding = self._newest.get(key)
        if finding is None or not self._continues(finding, now_s):
            check, component, code = key
            finding = Finding(
                check=check, component=component, code=code, count=count, first_s=now_s, last_s=now_s, message=message
            )
        else:
            finding = msgspec.structs.replace(finding, count=finding.count + count, last_s=max(finding.last_s, now_s))
        self._newest[key] = finding
        self._changed[(*key, finding.first_s)] = finding

    def take(self, now_s: float) -> list[Finding]:
        """Return incidents that began or grew since the last call, oldest first."""
        taken = sorted(self._changed.values(), key=lambda finding: (finding.first_s, finding.key))
        self._changed.clear()
        for key in [key for key, finding in self._newest.items() if not self._continues(finding, now_s)]:
            del self._newest[key]
        return taken

    def _continues(self, finding: Finding, now_s: float) -> bool:
        # Also false if the clock was set back by more than a pause: a new incident then has the new time.
        return (
            finding.first_s - self._pause_s
            <= now_s
            <= min(finding.last_s + self._pause_s, finding.first_s + self._longest_s)
        )
