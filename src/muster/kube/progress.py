"""Progress marks of the loops of a process: liveness depends on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge


class Progress:
    """Records when each loop last made progress, and the deadline of its next mark.

    Deadlines use a monotonic clock, so that a change of the wall clock neither causes nor hides a stall.

    Args:
        clock: monotonic seconds.
        registry: receives the age and the deadline of each mark as metrics; None: no metrics.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, registry: CollectorRegistry | None = None
    ) -> None:
        self._clock = clock
        self._marks: dict[str, tuple[float, float]] = {}
        self._gauge: Gauge | None = None
        self._deadlines: Gauge | None = None
        if registry is not None:
            from prometheus_client import Gauge  # imported only if needed: the agent saves its memory

            self._gauge = Gauge(
                "muster_progress_age_seconds", "Time since a loop last made progress.", ["loop"], registry=registry
            )
            self._deadlines = Gauge(
                "muster_progress_deadline_seconds",
                "Age of a loop's last progress above which liveness fails.",
                ["loop"],
                registry=registry,
            )

    def expect(self, name: str, deadline_s: float) -> None:
        """Require a mark for `name` at least every `deadline_s` seconds."""
        self._marks[name] = (self._clock(), deadline_s)
        if self._gauge is not None:
            self._gauge.labels(name).set_function(lambda: self.age_s(name))
        if self._deadlines is not None:
            self._deadlines.labels(name).set(deadline_s)

    def mark(self, name: str) -> None:
        """Record that `name` made progress. A name without a deadline is ignored."""
        known = self._marks.get(name)
        if known is not None:
            self._marks[name] = (self._clock(), known[1])

    def drop(self, name: str) -> None:
        """Stop requiring marks of `name`, because it ended normally."""
        if self._marks.pop(name, None) is not None and self._gauge is not None and self._deadlines is not None:
            self._gauge.remove(name)
            self._deadlines.remove(name)

    def age_s(self, name: str) -> float:
        """Seconds since the last mark of `name`; 0 for an unknown name."""
        known = self._marks.get(name)
        return self._clock() - known[0] if known is not None else 0.0

    def deadlines_s(self) -> dict[str, float]:
        """The deadline of the next mark of each name, in seconds after the last mark."""
        return {name: deadline_s for name, (_, deadline_s) in self._marks.items()}

    def ages_s(self) -> dict[str, float]:
        """Seconds since the last mark of each name."""
        now = self._clock()
        return {name: now - marked for name, (marked, _) in self._marks.items()}

    def overdue(self) -> dict[str, float]:
        """Return the loops past their deadline, with the seconds since their last mark."""
        now = self._clock()
        return {name: now - marked for name, (marked, deadline_s) in self._marks.items() if now - marked > deadline_s}
