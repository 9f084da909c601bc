"""The findings that the agent holds for its node's NodeHealth: bounded, kept over restarts, without merging incidents.

The agent holds up to 1,024 findings; the object shows 64 of the last 30 days. If there are more, the checks take turns,
the newest finding of each first. So a disk with a thousand errors does not hide a GPU that fell off the bus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

import msgspec

from muster.api.node_health import FINDINGS_MAX, ObservedFinding
from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import INCIDENT_S_MAX, PAUSE_S
from muster.fleet.health.record import finding_of, observed

HELD_MAX: Final = 1024
KEEP_S: Final = 30 * 86400.0
"""The longest window of a rule in the default policy."""
SAME_START_S: Final = 5.0
"""Tolerance for the start of an incident: after a restart the log is read again, and the clock may have been adjusted
since. Incidents are at least a minute apart."""

Identity = tuple[str, str, str, int]


def identity(finding: Finding) -> Identity:
    """Return the identity of an incident. Times are rounded to the microsecond, as in the API."""
    return (*finding.key, round(finding.first_s * 1e6))


class Record:
    """The findings of a node.

    Args:
        before: the findings in the node's object when the agent started.
        dropped: how many findings it had no room for.
    """

    def __init__(self, before: Iterable[ObservedFinding] = (), dropped: int = 0) -> None:
        self._held: dict[Identity, Finding] = {}
        self._forgotten = dropped
        self._before: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
        self._adopted: dict[Identity, Finding] = {}
        for seen in before:
            finding = finding_of(seen)
            self._held[identity(finding)] = finding
            self._before[finding.key].append(finding)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def findings(self) -> list[Finding]:
        """All findings, the oldest change first."""
        return list(self._held.values())

    def add(self, findings: Sequence[Finding]) -> tuple[bool, bool]:
        """Take the findings of a check. Returns (whether an incident is new, whether one has grown)."""
        new = grown = False
        for reported in findings:
            finding = self._adopt(reported)
            at = identity(finding)
            known = self._held.get(at)
            if known is None:
                new = True
            elif (finding.count, finding.last_s) > (known.count, known.last_s):
                grown = True
            else:
                continue
            self._held.pop(at, None)
            self._held[at] = finding
        if len(self._held) > HELD_MAX:
            self._forget(len(self._held) - HELD_MAX)
        return new, grown

    def shown(self, now_s: float) -> tuple[tuple[ObservedFinding, ...], int]:
        """Return (the findings of the object, oldest first; how many others it has no room for)."""
        # Old findings are hidden but kept, because a clock that is wrong for a while must not delete them.
        recent = [finding for finding in self._held.values() if finding.last_s >= now_s - KEEP_S]
        by_check: dict[str, list[Finding]] = defaultdict(list)
        for finding in sorted(recent, key=lambda finding: (finding.last_s, finding.first_s), reverse=True):
            by_check[finding.check].append(finding)
        turns = [finding for turn in zip_longest(*by_check.values()) for finding in turn if finding is not None]
        chosen = sorted(turns[:FINDINGS_MAX], key=lambda finding: (finding.first_s, finding.key))
        return tuple(observed(finding) for finding in chosen), self._forgotten + len(recent) - len(chosen)

    def _forget(self, number: int) -> None:
        for at in sorted(self._held, key=lambda at: self._held[at].last_s)[:number]:
            del self._held[at]
        self._forgotten += number

    def _adopt(self, reported: Finding) -> Finding:
        """Return the finding with the start time that it had before the agent restarted, if it is the same incident."""
        mine = identity(reported)
        before = self._adopted.get(mine)
        if before is None:
            before = self._begun(reported)
            if before is None:
                return reported
            self._adopted[mine] = before
        # If a log is read again, the count is the same or higher. A sampling check counts only new events, so they are
        # added.
        again = reported.first_s <= before.last_s or _same_start(before, reported)
        return msgspec.structs.replace(
            reported,
            first_s=before.first_s,
            last_s=max(before.last_s, reported.last_s),
            count=max(before.count, reported.count) if again else before.count + reported.count,
            message=before.message or reported.message,
        )

    def _begun(self, reported: Finding) -> Finding | None:
        """Return this incident as it was before the restart; None if it began after that.

        Each earlier finding becomes one incident only. If the clock was set back, the next incident can seem to
        continue it without a pause.
        """
        taken = {identity(each) for each in self._adopted.values()}
        open_ = [each for each in self._before.get(reported.key, ()) if identity(each) not in taken]
        same = (each for each in open_ if _same_start(each, reported))
        return next(same, None) or next((each for each in open_ if _continues(each, reported)), None)


def _same_start(before: Finding, reported: Finding) -> bool:
    return abs(reported.first_s - before.first_s) <= SAME_START_S


def _continues(before: Finding, reported: Finding) -> bool:
    """Return whether this is an incident from before the restart: the same start, or continued without a pause."""
    return _same_start(before, reported) or before.first_s < reported.first_s <= min(
        before.last_s + PAUSE_S, before.first_s + INCIDENT_S_MAX
    )
