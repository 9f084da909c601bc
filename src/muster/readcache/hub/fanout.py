"""Passes events on to the watches that they concern.

Events are collected, and flushed once per turn of the event loop. Watches with the same selection and view share the
bytes. A long flush is cut into slices, so that timers and sockets do not wait. A watch that was paused, or that begins
at an old version, reads what it missed from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from muster.readcache.hub.event import Event
from muster.readcache.hub.limits import Limits
from muster.readcache.hub.log import EventLog
from muster.readcache.hub.logindex import LogIndex
from muster.readcache.hub.selection import Selection, value_of
from muster.readcache.hub.subscription import Group, OnClosed, OnFrames, Subscription
from muster.readcache.hub.view import View

_NEVER = 1 << 62  # the place of a watch from a version that is not known yet
_CHUNKS_MAX = 256  # chunks of the log that watches which catch up may share

Chunk = tuple[list[bytes], int, int]  # pieces, number of events, number of the next event


class Loop(Protocol):
    """The part of an event loop that the fan-out uses."""

    def time(self) -> float:
        """Return the loop's time in seconds."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Call back in the next turn."""
        ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error."""
        ...


class FanOut:
    """The watches of one kind, in buckets, so that an event costs only those whose bucket it touches.

    Args:
        loop: where flushes are scheduled; None to pass on each event before `publish` returns.

    Attributes:
        version: the newest version of the kind.
        slow: watches that were closed because they did not keep up.
        delivered: events passed on, counted once per watch.
    """

    def __init__(self, log: EventLog, limits: Limits, loop: Loop | None) -> None:
        self.version = 0
        self.slow = 0
        self.delivered = 0
        self._log = log
        self._limits = limits
        self._loop = loop
        self._count = 0
        self._groups: dict[tuple[Selection, object], Group] = {}
        self._everything: list[Group] = []
        self._buckets: dict[str, dict[str, list[Group]]] = {}
        self._dirty: list[Group] = []
        self._pending = 0
        self._encoded: list[Event] = []
        self._behind: dict[Subscription, None] = {}
        self._catching_up: dict[Subscription, None] = {}
        self._ahead: dict[Subscription, int] = {}
        self._log_indexes: dict[str, LogIndex] = {}
        self._chunks: dict[tuple[Group, int], Chunk] = {}
        self._work: Iterator[None] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def behind(self) -> int:
        """The number of watches that have events waiting in the log."""
        return len(self._behind)

    def add(
        self, selection: Selection, view: View, version: int, on_frames: OnFrames, on_closed: OnClosed | None
    ) -> Subscription:
        """Add a watch that has seen everything up to `version`. The log must hold what followed."""
        key = (selection, view if view.key is None else view.key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, selection, view)
            self._groups_of(selection).append(group)
        subscription = Subscription(self, group, version, on_frames, on_closed)
        subscription.member = len(group.members)
        group.members.append(subscription)
        self._count += 1
        if version > self.version:
            subscription.place = _NEVER
            self._ahead[subscription] = version
            return subscription
        subscription.place = self._log.after(version)
        if subscription.place < self._log.end:
            self._fall_behind(subscription)
            self.catch_up(subscription)
        return subscription

    def version_of(self, serial: int) -> int:
        """Return the version of an event, 0 if it is not in the log."""
        return self._log.version_of(serial)

    def end(self, subscription: Subscription, reason: str) -> None:
        """Forget a watch."""
        if subscription.closed:
            return
        subscription.closed = reason
        subscription.live = subscription.paused = False
        self._behind.pop(subscription, None)
        self._catching_up.pop(subscription, None)
        self._ahead.pop(subscription, None)
        self._count -= 1
        group = subscription.group
        last = group.members.pop()
        if last is not subscription:
            group.members[subscription.member] = last
            last.member = subscription.member
        if not group.members:
            self._pending -= len(group.pending)
            group.pending.clear()
            del self._groups[group.key]
            self._forget_group(group)
        if reason == "closed":
            return
        self.slow += reason == "slow"
        if subscription.on_closed is not None:
            subscription.on_closed(reason)

    def end_all(self, reason: str) -> None:
        """End every watch."""
        for group in list(self._groups.values()):
            for subscription in list(group.members):
                self.end(subscription, reason)

    def publish(self, event: Event) -> None:
        """Collect an event, which is already in the log, for the watches that it concerns."""
        if self._ahead:
            self._reach(event)
        self.version = event.version
        for group in self._touched(event):
            type_ = event.type_for(group.selection)
            if type_ is not None:
                group.newest = event.serial
                if group.truncated >= 0:
                    continue
                if not group.pending:
                    self._dirty.append(group)
                if self._pending < self._limits.pending_events:
                    self._pending += 1
                    group.pending.append((event, type_))
                else:
                    group.truncated = event.serial
        if self._dirty:
            self._schedule()

    def advance(self, version: int) -> None:
        """Record that all events up to `version` have come."""
        self.version = max(self.version, version)

    def dropped(self) -> None:
        """End the watches whose missed events are no longer in the log."""
        for subscription in [one for one in self._behind if one.place < self._log.start]:
            self.end(subscription, "slow")

    def catch_up(self, subscription: Subscription) -> None:
        """Pass on what the log has for a watch that is behind."""
        if not subscription.closed:
            self._catching_up[subscription] = None
            self._schedule()

    def _groups_of(self, selection: Selection) -> list[Group]:
        bucket = selection.bucket
        if bucket is None:
            return self._everything
        return self._buckets.setdefault(bucket[0], {}).setdefault(bucket[1], [])

    def _forget_group(self, group: Group) -> None:
        groups = self._groups_of(group.selection)
        groups.remove(group)
        bucket = group.selection.bucket
        if bucket is not None and not groups:
            del self._buckets[bucket[0]][bucket[1]]
            if not self._buckets[bucket[0]]:
                del self._buckets[bucket[0]]

    def _touched(self, event: Event) -> list[Group]:
        item, old = event.item, event.old
        touched = self._everything
        for field, values in self._buckets.items():
            now = value_of(item, field)
            groups = values.get(now)
            if groups:
                touched = touched + groups
            if old is not None:
                was = value_of(old, field)
                if was != now and (groups := values.get(was)):
                    touched = touched + groups
        return touched

    def _schedule(self) -> None:
        if self._work is not None:
            return  # it takes new work as well
        self._work = self._flush()
        if self._loop is None:
            self._run()
        else:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        try:
            for _ in self._work or ():
                if self._loop is not None:
                    self._loop.call_soon(self._run)
                    return
        except BaseException:
            self._work = None
            raise
        self._work = None

    def _flush(self) -> Iterator[None]:
        """Pass on all that is pending. Yields when a slice of time is used up."""
        clock = self._loop.time if self._loop is not None else _no_time
        end = clock() + self._limits.slice_s
        while self._dirty or self._catching_up:
            dirty, self._dirty = self._dirty, []
            for _ in self._flush_groups(dirty):
                if clock() > end:
                    yield
                    end = clock() + self._limits.slice_s
            for event in self._encoded:
                event.forget_frames()
            self._encoded.clear()
            for subscription in list(self._catching_up):
                if subscription in self._catching_up:
                    self._read_on(subscription)
                    if len(self._chunks) > _CHUNKS_MAX:
                        self._chunks.clear()
                    if clock() > end:
                        yield
                        end = clock() + self._limits.slice_s
            self._chunks.clear()
        self._log_indexes.clear()

    def _flush_groups(self, dirty: list[Group]) -> Iterator[None]:
        """Pass on what is pending. Yields between deliveries, now and then."""
        passed, interval = 0, self._limits.clock_interval
        for group in dirty:
            pending, group.pending = group.pending, []
            start = 0
            while start < len(pending) and group.members:
                try:
                    count, data = self._chunk(group.view, pending, start)
                except Exception as error:
                    self._fail(group.members, error)
                    break
                first, last = pending[start][0].serial, pending[start + count - 1][0].serial
                pieces = [data]
                for subscription in group.members.copy():
                    if subscription.live:
                        if subscription.place <= first:
                            subscription.place = last + 1
                            try:
                                subscription.on_frames(pieces)
                            except Exception as error:
                                self._fail([subscription], error)
                            self.delivered += count
                        elif subscription.place <= last:
                            self._pass_rest(subscription, pending[start : start + count])
                    elif subscription.paused and subscription.place <= last:
                        self._miss(subscription, first, count)
                    passed += 1
                    if not passed % interval:
                        yield
                start += count
            self._pending -= len(pending)
            if group.truncated >= 0:
                self._read_the_rest(group)
            passed += 1
            if not passed % interval:
                yield

    def _read_the_rest(self, group: Group) -> None:
        """Let the watches of a group with too many pending events read them from the log."""
        serial = group.pending[0][0].serial if group.pending else group.truncated
        group.truncated = -1
        for subscription in group.members.copy():
            if not subscription.behind and subscription.place <= group.newest:
                self._fall_behind(subscription, serial)
                if not subscription.paused:
                    self.catch_up(subscription)

    def _chunk(self, view: View, pending: list[tuple[Event, str]], start: int) -> tuple[int, bytes]:
        """Encode events from `start`. Returns how many, and their frames."""
        if start == len(pending) - 1:
            event, type_ = pending[start]
            self._encoded.append(event)
            return 1, event.frame(type_, view)
        frames = []
        size = 0
        for position in range(start, len(pending)):
            event, type_ = pending[position]
            frame = event.frame(type_, view)
            self._encoded.append(event)
            frames.append(frame)
            size += len(frame)
            if size >= self._limits.chunk_bytes:
                break
        return len(frames), frames[0] if len(frames) == 1 else b"".join(frames)

    def _read_on(self, subscription: Subscription) -> None:
        if subscription.paused:
            del self._catching_up[subscription]
            return
        try:
            self._read(subscription)
        except Exception as error:
            self._fail([subscription], error)

    def _read(self, subscription: Subscription) -> None:
        """Pass on one chunk from the log."""
        group = subscription.group
        key = (group, subscription.place)
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = self._read_chunk(group, subscription.place)
        pieces, count, subscription.place = found
        if subscription.place == self._log.end:
            subscription.behind = False
            subscription.live = True
            del self._behind[subscription]
            del self._catching_up[subscription]
        if count:
            self._pass(subscription, pieces, count)

    def _read_chunk(self, group: Group, place: int) -> Chunk:
        frames = []
        size = 0
        events, end = self._events_for(group.selection, place)
        for event in events:
            type_ = event.type_for(group.selection)
            if type_ is not None:
                frame = event.frame(type_, group.view)
                event.forget_frames()
                frames.append(frame)
                size += len(frame)
                if size >= self._limits.chunk_bytes:
                    end = event.serial + 1
                    break
        return frames if len(frames) == 1 else [b"".join(frames)], len(frames), end

    def _events_for(self, selection: Selection, place: int) -> tuple[list[Event], int]:
        """Return events that may concern a selection from a number on, and the number up to which these are all."""
        bucket, count = selection.bucket, self._limits.read_events
        if bucket is None or len(self._catching_up) < self._limits.index_watches:
            events = self._log.read(place, count)
            return events, place + len(events)
        field, value = bucket
        index = self._log_indexes.get(field)
        if index is None:
            index = self._log_indexes[field] = LogIndex(self._log, field)
        return index.read(value, place, count)

    def _pass(self, subscription: Subscription, pieces: list[bytes], count: int) -> None:
        self.delivered += count
        try:
            subscription.on_frames(pieces)
        except Exception as error:
            self._fail([subscription], error)

    def _pass_rest(self, subscription: Subscription, chunk: list[tuple[Event, str]]) -> None:
        """Pass on the part of a chunk that a watch, which began in the middle of it, has not seen."""
        rest = [entry for entry in chunk if entry[0].serial >= subscription.place]
        subscription.place = chunk[-1][0].serial + 1
        view = subscription.group.view
        self._pass(subscription, [event.frame(type_, view) for event, type_ in rest], len(rest))

    def _miss(self, subscription: Subscription, serial: int, count: int) -> None:
        """Count events that a paused watch misses, from a number on."""
        if not subscription.behind:
            self._fall_behind(subscription, serial)
        subscription.waiting += count
        if subscription.waiting > self._limits.waiting_events:
            self.end(subscription, "slow")

    def _reach(self, event: Event) -> None:
        """Let watches begin at this event if it is the first one after their version."""
        for subscription in [one for one, version in self._ahead.items() if version < event.version]:
            del self._ahead[subscription]
            subscription.place = event.serial

    def _fall_behind(self, subscription: Subscription, serial: int = 0) -> None:
        """Let a watch that no event before a number concerns read later ones from the log."""
        subscription.place = max(subscription.place, serial)
        subscription.behind = True
        subscription.live = False
        self._behind[subscription] = None
        if subscription.place < self._log.start:
            self.end(subscription, "slow")

    def _fail(self, subscriptions: list[Subscription], error: Exception) -> None:
        if self._loop is None:
            raise error
        for subscription in list(subscriptions):
            self.end(subscription, "failed")
        self._loop.call_exception_handler({"message": "a watch failed", "exception": error})


def _no_time() -> float:
    return 0.0
