"""The ordered, bounded log of one kind's events."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from muster.readcache.hub.event import Event
from muster.readcache.hub.item import Item

GAPS_MAX = 64


class Expired(Exception):
    """The log does not hold what followed the requested version."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {version} ({oldest})")
        self.version = version
        self.oldest = oldest


class EventLog:
    """Events in the order of their versions, numbered one after another.

    Attributes:
        start: the number of the first event.
        oldest: the earliest version after which all events are known.
        bytes: bytes of old objects that only the log keeps.
    """

    def __init__(self) -> None:
        self.start = 0
        self.oldest = 0
        self.bytes = 0
        self._events: list[Event] = []
        self._versions: list[int] = []
        self._gaps: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self.start + len(self._events)

    def append(self, event: Event) -> None:
        """Append the newest event, and number it."""
        event.serial = self.end
        self._events.append(event)
        self._versions.append(event.version)

    def begin(self, version: int) -> None:
        """Forget all events. The log begins at `version`."""
        self.start = self.end
        self._events.clear()
        self._versions.clear()
        self._gaps.clear()
        self.bytes = 0
        self.oldest = version

    def gap(self, after: int, until: int) -> int:
        """Record that only the differences between the states at two versions are known, not what was in between.

        Returns the bytes that this frees, because the number of gaps is limited.
        """
        if until <= after + 1:
            return 0
        self._gaps.append((after, until))
        if len(self._gaps) <= GAPS_MAX:
            return 0
        oldest = self._gaps[0][1]
        return self.drop(self.after(oldest) - self.start, oldest)

    def drop(self, count: int, oldest: int = 0) -> int:
        """Drop the oldest events. Returns the bytes that this frees. `oldest`: where the log then begins at least."""
        freed = sum(event.log_bytes for event in itertools.islice(self._events, count))
        if count:
            oldest = max(oldest, self._versions[count - 1])
        self.start += count
        del self._events[:count]
        del self._versions[:count]
        self.oldest = max(self.oldest, oldest)
        self._gaps = [gap for gap in self._gaps if gap[1] > self.oldest]
        self.bytes -= freed
        return freed

    def check(self, version: int) -> None:
        """Check that the log holds everything after `version`.

        Raises:
            Expired: it does not.
        """
        if version < self.oldest:
            raise Expired(version, self.oldest)
        for after, until in self._gaps:
            if after < version < until:
                raise Expired(version, until)

    def since(self, version: int) -> list[Event]:
        """Return all events after `version`.

        Raises:
            Expired: the log does not hold them all.
        """
        self.check(version)
        return self._events[self.after(version) - self.start :]

    def after(self, version: int) -> int:
        """Return the number of the first event after `version`."""
        return self.start + bisect.bisect_right(self._versions, version)

    def read(self, serial: int, count: int) -> list[Event]:
        """Return up to `count` events from a number, which must not be lower than `start`."""
        first = serial - self.start
        return self._events[first : first + count]

    def version_of(self, serial: int) -> int:
        """Return the version of an event, 0 if it is not in the log."""
        return self._versions[serial - self.start] if self.start <= serial < self.end else 0

    def changed_since(self, version: int) -> dict[str, Item | None]:
        """Return for each key that changed after `version` its item at `version`.

        Raises:
            Expired: the log does not reach back that far.
        """
        before: dict[str, Item | None] = {}
        for event in self.since(version):
            before.setdefault(event.item.key, event.old)
        return before
