"""The hub: the event log of one kind, and the watches of it."""

from __future__ import annotations

from muster.readcache.hub.event import Event
from muster.readcache.hub.fanout import FanOut, Loop
from muster.readcache.hub.limits import DEFAULT, Budget, Limits
from muster.readcache.hub.log import EventLog
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.subscription import OnClosed, OnFrames, Subscription
from muster.readcache.hub.view import View


class Hub:
    """The event log of one kind and its watches.

    Args:
        loop: where events are flushed to watches, once per turn; None to flush before `publish` returns.
        budget: the memory of all logs together.
    """

    def __init__(self, loop: Loop | None = None, limits: Limits = DEFAULT, budget: Budget | None = None) -> None:
        self.limits = limits
        self.log = EventLog()
        self._fanout = FanOut(self.log, limits, loop)
        self._budget = budget
        if budget is not None:
            budget.add(self)

    def __len__(self) -> int:
        """The number of watches."""
        return len(self._fanout)

    @property
    def version(self) -> int:
        """The newest version that is known."""
        return self._fanout.version

    @property
    def oldest(self) -> int:
        """The earliest version from which a watch may begin."""
        return self.log.oldest

    @property
    def bytes(self) -> int:
        """Bytes of old objects that only the log keeps."""
        return self.log.bytes

    @property
    def slow(self) -> int:
        """Watches that were closed because they did not keep up."""
        return self._fanout.slow

    @property
    def behind(self) -> int:
        """Watches for which events wait in the log."""
        return self._fanout.behind

    @property
    def delivered(self) -> int:
        """Events passed on, counted once per watch."""
        return self._fanout.delivered

    def publish(self, event: Event) -> None:
        """Append the newest event, and pass it to the watches that it concerns."""
        self.log.append(event)
        size = event.log_bytes
        self.log.bytes += size
        if self._budget is not None:
            self._budget.charge(size)
        while len(self.log) > self.limits.log_events or self.log.bytes > self.limits.log_bytes:
            if not self.shorten():
                break
        self._fanout.publish(event)

    def advance(self, version: int) -> None:
        """Record that all events up to `version` have come."""
        self._fanout.advance(version)

    def gap(self, after: int, until: int) -> None:
        """Record that only the differences between the states at two versions are known, not what was in between."""
        self._freed(self.log.gap(after, until))

    def shorten(self) -> bool:
        """Drop the oldest eighth of the log. Returns whether there was anything to drop."""
        if not len(self.log):
            return False
        self._freed(self.log.drop(max(1, len(self.log) // 8)))
        return True

    def begin(self, version: int) -> None:
        """Begin the log at `version`, because earlier events are not known, and end every watch as "reset"."""
        if self._budget is not None:
            self._budget.charge(-self.log.bytes)
        self.log.begin(version)
        self._fanout.version = version
        self._fanout.end_all("reset")

    def subscribe(
        self,
        selection: Selection,
        version: int,
        view: View,
        on_frames: OnFrames,
        on_closed: OnClosed | None = None,
    ) -> Subscription:
        """Watch from after `version`. Later events in the log are passed on too.

        `on_frames` is called with pieces of the stream; each piece holds whole frames. `on_closed` is called with the
        reason if the hub ends the watch. Neither is called before this method returns if the hub has a loop.

        Raises:
            Expired: the log no longer reaches back that far.
        """
        self.log.check(version)
        return self._fanout.add(selection, view, version, on_frames, on_closed)

    def close(self) -> None:
        """End every watch, and give the log's memory back. The hub is not used again."""
        self.close_all()
        if self._budget is not None:
            self._budget.remove(self)
            self._budget = None

    def close_all(self, reason: str = "stopped") -> None:
        """End every watch."""
        self._fanout.end_all(reason)

    def _freed(self, size: int) -> None:
        if self._budget is not None:
            self._budget.charge(-size)
        self._fanout.dropped()
