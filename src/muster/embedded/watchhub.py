"""The watch hub: one ordered, bounded event log for a kind, fanned out to many watchers.

Each event is encoded once for each requested representation, and all watchers share the bytes. A watcher is in one
bucket (everything, a namespace, an object, or a value of an indexed field), so an event costs only the watchers whose
bucket it touches. A watcher that does not keep up is dropped: its client watches again from the last version it saw, as
with kube-apiserver.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from muster.embedded.objects import Obj, decode, encode

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
DEFAULT_CAPACITY = 20_000
WATCHER_BACKLOG = 10_000
Bucket = tuple[str, str] | None


class Expired(Exception):
    """The requested version is older than the oldest one in the log."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {version} ({oldest})")


class Item:
    """An object at one version: its encoded JSON, and the fields that selectors read."""

    __slots__ = ("data", "fields", "key", "labels", "name", "namespace", "owners", "terminating", "uid", "version")

    def __init__(
        self,
        key: str,
        version: int,
        data: bytes,
        *,
        namespace: str = "",
        name: str = "",
        uid: str = "",
        labels: dict[str, str] | None = None,
        fields: dict[str, str] | None = None,
        owners: tuple[str, ...] = (),
        terminating: bool = False,
    ) -> None:
        self.key = key
        self.version = version
        self.data = data
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.labels = labels or {}
        self.fields = fields or {}
        self.owners = owners
        self.terminating = terminating

    def object(self) -> Obj:
        """Decode the object to a new dictionary, which the caller may change."""
        return decode(self.data)

    def at(self, version: int) -> Item:
        """Return the same object with another resourceVersion."""
        obj = self.object()
        obj["metadata"]["resourceVersion"] = str(version)
        return Item(
            self.key,
            version,
            encode(obj),
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            labels=self.labels,
            fields=self.fields,
            owners=self.owners,
            terminating=self.terminating,
        )


class Selection(Protocol):
    """The objects that a watcher selects."""

    @property
    def bucket(self) -> Bucket:
        """The bucket that contains all selected objects."""
        ...

    def matches(self, item: Item) -> bool:
        """Returns whether the object is selected."""
        ...


class View(Protocol):
    """The representation of objects for a watcher; views with the same key write the same bytes."""

    @property
    def key(self) -> str | None:
        """Returns the identity of this view, None if its bytes are not shared."""
        ...

    def encode(self, item: Item) -> bytes:
        """Write one object as JSON."""
        ...


class PlainView:
    """Objects as they are stored."""

    key: str | None = ""

    def encode(self, item: Item) -> bytes:
        """Return the stored bytes."""
        return item.data


PLAIN = PlainView()


class Event:
    """A change of an object. Its frames are encoded at first use and then shared."""

    __slots__ = ("_frames", "_old_now", "item", "old", "type", "version")

    def __init__(self, type_: str, item: Item, old: Item | None) -> None:
        self.type = type_
        self.version = item.version
        self.item = item
        self.old = old
        self._old_now: Item | None = None
        self._frames: dict[tuple[str, str], bytes] = {}

    def type_for(self, selection: Selection) -> str | None:
        """Return the event type for a selection: ADDED on entering it, DELETED on leaving, MODIFIED within, or None."""
        before = self.old is not None and selection.matches(self.old)
        if self.type == DELETED:
            return DELETED if before or (self.old is None and selection.matches(self.item)) else None
        if selection.matches(self.item):
            return MODIFIED if before else ADDED
        return DELETED if before else None

    def frame(self, type_: str, view: View) -> bytes:
        """Return the line of the watch stream for this event, as `type_`."""
        if view.key is None:
            return frame(type_, view.encode(self._item_for(type_)))
        key = (type_, view.key)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = frame(type_, view.encode(self._item_for(type_)))
        return found

    def _item_for(self, type_: str) -> Item:
        if type_ == DELETED and self.type != DELETED and self.old is not None:
            # The object left the selection: send its old state with the new version, as kube-apiserver does.
            self._old_now = self._old_now or self.old.at(self.version)
            return self._old_now
        return self.item


def frame(type_: str, data: bytes) -> bytes:
    """Return one line of a watch stream."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), data)


class Watcher:
    """A watch with a bounded queue of frames for its stream."""

    def __init__(self, hub: Hub, selection: Selection, view: View, version: int, backlog: int) -> None:
        self.selection = selection
        self.view = view
        self.version = version  # the newest version that was sent, or that is not for this watcher
        self.closed = False
        self.overrun = False
        self._hub = hub
        self._backlog = backlog
        self._frames: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, event: Event) -> None:
        """Queue the event if the selection includes it. If the queue is full, the watch ends."""
        if self.closed or event.version <= self.version:
            return
        self.version = event.version
        type_ = event.type_for(self.selection)
        if type_ is None:
            return
        if len(self._frames) >= self._backlog:
            self.overrun = True
            self.close()
            return
        self._frames.append(event.frame(type_, self.view))
        self._wake()

    def take(self) -> list[bytes]:
        """Remove and return all queued frames."""
        taken = list(self._frames)
        self._frames.clear()
        return taken

    async def wait(self) -> None:
        """Wait until there are frames, or the watch is closed."""
        if self._frames or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """End the watch. Queued frames can still be taken."""
        if not self.closed:
            self.closed = True
            self._hub.unsubscribe(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Hub:
    """The event log of one kind and its watchers."""

    def __init__(self, indexes: Iterable[str] = (), capacity: int = DEFAULT_CAPACITY) -> None:
        self.indexes = tuple(indexes)
        self.capacity = capacity
        self.dropped_watchers = 0
        self._events: list[Event] = []
        self._versions: list[int] = []
        self._oldest = 0  # older versions are no longer in the log
        self._buckets: dict[Bucket, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def forget_before(self, version: int) -> None:
        """Begin the log at `version`, because earlier events are not known."""
        self._events.clear()
        self._versions.clear()
        self._oldest = version

    def publish(self, event: Event) -> None:
        """Append the newest event, and pass it to the watchers of its buckets."""
        self._events.append(event)
        self._versions.append(event.version)
        if len(self._events) > 2 * self.capacity:
            cut = len(self._events) - self.capacity
            self._oldest = self._versions[cut - 1]
            del self._events[:cut]
            del self._versions[:cut]
        for bucket in self._buckets_of(event):
            watchers = self._buckets.get(bucket)
            if watchers:
                for watcher in list(watchers):
                    watcher.offer(event)

    def since(self, version: int) -> list[Event]:
        """Return all events after `version`.

        Raises:
            Expired: the log no longer reaches back that far.
        """
        if version < self._oldest:
            raise Expired(version, self._oldest)
        return self._events[bisect.bisect_right(self._versions, version) :]

    def subscribe(
        self, selection: Selection, version: int, view: View = PLAIN, backlog: int = WATCHER_BACKLOG
    ) -> Watcher:
        """Watch from after `version`. All later events in the log are queued at once.

        Raises:
            Expired: the log no longer reaches back that far.
        """
        events = self.since(version)
        watcher = Watcher(self, selection, view, version, len(events) + backlog)
        for event in events:
            watcher.offer(event)
        self._buckets.setdefault(selection.bucket, {})[watcher] = None
        return watcher

    def unsubscribe(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        bucket = self._buckets.get(watcher.selection.bucket)
        if bucket is not None and bucket.pop(watcher, False) is None:
            self.dropped_watchers += watcher.overrun
            if not bucket:
                del self._buckets[watcher.selection.bucket]

    def close_all(self) -> None:
        """End every watch."""
        for bucket in list(self._buckets.values()):
            for watcher in list(bucket):
                watcher.close()

    def _buckets_of(self, event: Event) -> dict[Bucket, None]:
        found: dict[Bucket, None] = {None: None, ("key", event.item.key): None}
        if event.item.namespace:
            found[("metadata.namespace", event.item.namespace)] = None
        for index in self.indexes:
            for item in (event.item, event.old):
                if item is not None:
                    found[(index, item.fields.get(index, ""))] = None
        return found


Describe = Callable[[Obj], dict[str, str]]
