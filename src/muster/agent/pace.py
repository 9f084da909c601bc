"""When the agent may write: soon after something new, now and then while something grows, and every five minutes.

Pure: times are the caller's monotonic clock. At most one write a period, whatever happens.

    new incident ──► within `SPREAD_S`, by the node's name, and not before the period is over
    it grows ──────► after a minute, then two, four, five
    confirmed ─────► a minute after the last write
    nothing ───────► at the node's own moment of the heartbeat
    refused, lost ─► later each time, and not before the server said
"""

from __future__ import annotations

from typing import Final

from muster.agent.shares import share

SPREAD_S: Final = 1.0
"""A fault that all nodes have at once is not written by all at once."""
GROWTH_S: Final = 60.0
BACKOFF_S_MAX: Final = 60.0


class Pace:
    """Says when the next write is due.

    Args:
        node: name of the node.
        period_s: at most one write in it.
        heartbeat_s: at least one write in it.
        now_s: when the agent started; its first write is due at once.
    """

    def __init__(self, node: str, *, period_s: float, heartbeat_s: float, now_s: float) -> None:
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._share = share(node)
        self._new_s: float | None = now_s
        self._grown_s: float | None = None
        self._confirmed_s: float | None = None
        self._growth_s = GROWTH_S
        self._written_s = now_s
        self._tried_s = float("-inf")
        self._not_before_s = float("-inf")
        self._failures = 0

    def new(self, now_s: float) -> None:
        """Something new is to be written."""
        if self._new_s is None:
            self._new_s = now_s
        self._growth_s = GROWTH_S

    def grown(self, now_s: float) -> None:
        """What is known goes on."""
        if self._grown_s is None:
            self._grown_s = now_s

    def confirmed(self, now_s: float) -> None:
        """A report still holds, and the controller counts it only while it is confirmed: at most once a minute."""
        if self._confirmed_s is None:
            self._confirmed_s = now_s

    def due_s(self) -> float:
        """When the next write may be sent."""
        wanted = self._next_heartbeat_s()
        if self._new_s is not None:
            wanted = min(wanted, self._new_s + SPREAD_S * self._share)
        if self._grown_s is not None:
            wanted = min(wanted, max(self._grown_s, self._written_s + self._growth_s))
        if self._confirmed_s is not None:
            wanted = min(wanted, max(self._confirmed_s, self._written_s + GROWTH_S))
        return max(wanted, self._tried_s + self._period_s, self._not_before_s)

    def tried(self, now_s: float) -> None:
        """A write is sent now, with everything that is known."""
        self._tried_s = now_s
        if self._new_s is None and self._grown_s is not None:
            self._growth_s = min(2 * self._growth_s, self._heartbeat_s)
        self._new_s = self._grown_s = self._confirmed_s = None

    def written(self, now_s: float) -> None:
        """It was taken."""
        self._written_s = now_s
        self._failures = 0

    def failed(self, now_s: float, retry_after_s: float | None, luck: float) -> None:
        """It was not; what it said is still to be written.

        Args:
            now_s: now.
            retry_after_s: what the server asked for.
            luck: from 0 to 1, so that a fleet whose API server comes back does not come at once.
        """
        self._failures += 1
        backoff_s = min(self._period_s * 2 ** min(self._failures - 1, 8), max(BACKOFF_S_MAX, self._period_s))
        self._not_before_s = now_s + (retry_after_s or 0.0) + backoff_s * (0.5 + luck / 2)
        if self._new_s is None:
            self._new_s = now_s

    def _next_heartbeat_s(self) -> float:
        """The node's own moment after the last write: never further away than a heartbeat."""
        phase_s = self._share * self._heartbeat_s
        return self._written_s + self._heartbeat_s - (self._written_s - phase_s) % self._heartbeat_s
