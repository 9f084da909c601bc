"""Decides when the agent may write: soon after a new incident, less often while one grows, and every five minutes.

It has no clock: times are those of the caller's monotonic clock. There is at most one write per period.

    new incident ──► within `SPREAD_S`, by the node's name, and not before the period is over
    it grows ──────► after a minute, then two, four, five
    confirmed ─────► a minute after the last write
    no change ─────► at the node's own moment of the heartbeat
    failed ────────► with a growing back-off, and not before the server's Retry-After
"""

from __future__ import annotations

from typing import Final

from muster.agent.shares import share

SPREAD_S: Final = 1.0
"""Spreads the writes of nodes that all have the same fault at once."""
GROWTH_S: Final = 60.0
BACKOFF_S_MAX: Final = 60.0


class Pace:
    """Computes when the next write is due.

    Args:
        node: name of the node.
        period_s: at most one write per period.
        heartbeat_s: the longest time between two writes.
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
        """Note that a new incident is to be written."""
        if self._new_s is None:
            self._new_s = now_s
        self._growth_s = GROWTH_S

    def grown(self, now_s: float) -> None:
        """Note that a known incident has grown."""
        if self._grown_s is None:
            self._grown_s = now_s

    def confirmed(self, now_s: float) -> None:
        """Note that a report still holds. The controller counts it only while it is confirmed, here once a minute."""
        if self._confirmed_s is None:
            self._confirmed_s = now_s

    def due_s(self) -> float:
        """Return when the next write may be sent."""
        wanted = self._next_heartbeat_s()
        if self._new_s is not None:
            wanted = min(wanted, self._new_s + SPREAD_S * self._share)
        if self._grown_s is not None:
            wanted = min(wanted, max(self._grown_s, self._written_s + self._growth_s))
        if self._confirmed_s is not None:
            wanted = min(wanted, max(self._confirmed_s, self._written_s + GROWTH_S))
        return max(wanted, self._tried_s + self._period_s, self._not_before_s)

    def tried(self, now_s: float) -> None:
        """Note that a write with all findings is being sent."""
        self._tried_s = now_s
        if self._new_s is None and self._grown_s is not None:
            self._growth_s = min(2 * self._growth_s, self._heartbeat_s)
        self._new_s = self._grown_s = self._confirmed_s = None

    def written(self, now_s: float) -> None:
        """Note that the write succeeded."""
        self._written_s = now_s
        self._failures = 0

    def failed(self, now_s: float, retry_after_s: float | None, luck: float) -> None:
        """Note that the write failed; its content is still to be written.

        Args:
            now_s: now.
            retry_after_s: the server's Retry-After.
            luck: a random number from 0 to 1 that spreads the retries of a fleet when its API server comes back.
        """
        self._failures += 1
        backoff_s = min(self._period_s * 2 ** min(self._failures - 1, 8), max(BACKOFF_S_MAX, self._period_s))
        self._not_before_s = now_s + (retry_after_s or 0.0) + backoff_s * (0.5 + luck / 2)
        if self._new_s is None:
            self._new_s = now_s

    def _next_heartbeat_s(self) -> float:
        """Return the node's own moment after the last write, at most one heartbeat later."""
        phase_s = self._share * self._heartbeat_s
        return self._written_s + self._heartbeat_s - (self._written_s - phase_s) % self._heartbeat_s
