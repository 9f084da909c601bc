"""The events of the log by the values of one field, for the time in which many watches catch up."""

from __future__ import annotations

import bisect

from muster.readcache.hub.event import Event
from muster.readcache.hub.log import EventLog
from muster.readcache.hub.selection import value_of


class LogIndex:
    """The events of the log by the values of one field before and after each event."""

    def __init__(self, log: EventLog, field: str) -> None:
        self._log = log
        self._field = field
        self._start = self._end = log.end
        self._events: dict[str, list[Event]] = {}

    def read(self, value: str, serial: int, count: int) -> tuple[list[Event], int]:
        """Return up to `count` events with a value from a number on, and the number up to which these are all."""
        self._cover(serial)
        events = self._events.get(value, [])
        first = bisect.bisect_left(events, serial, key=_serial)
        found = events[first : first + count]
        return found, found[-1].serial + 1 if len(found) == count else self._end

    def _cover(self, serial: int) -> None:
        if serial < self._start:
            first = self._start == self._end
            self._events.clear()
            # From an earlier place only if a second watch needs it.
            self._start = self._end = serial if first else self._log.start
        for event in self._log.read(self._end, self._log.end - self._end):
            now = value_of(event.item, self._field)
            self._events.setdefault(now, []).append(event)
            if event.old is not None and (was := value_of(event.old, self._field)) != now:
                self._events.setdefault(was, []).append(event)
        self._end = self._log.end


def _serial(event: Event) -> int:
    return event.serial
