"""The objects of one kind in one media type, as upstream reports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from muster.readcache.hub.differences import differences
from muster.readcache.hub.event import ADDED, DELETED, MODIFIED, Event
from muster.readcache.hub.fanout import Loop
from muster.readcache.hub.hub import Hub
from muster.readcache.hub.item import Head, Item, item_of, share
from muster.readcache.hub.limits import DEFAULT, Budget, Limits
from muster.readcache.hub.objects import Objects
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.subscription import OnClosed, OnFrames, Subscription
from muster.readcache.hub.view import View
from muster.readcache.hub.waiters import Waiters


class OutOfOrder(Exception):
    """An event cannot follow the state that is known. The kind must be listed again."""


class Format(Protocol):
    """Reads and patches the bytes of objects."""

    def head(self, data: bytes) -> Head:
        """Read an object's head."""
        ...

    def at_version(self, data: bytes, version: int) -> bytes:
        """Return an object's bytes with another resourceVersion."""
        ...


class KindStore:
    """The objects of one kind in one media type, the log of their changes, and their watches.

    Args:
        format_: reads and patches the bytes of objects.
        indexes: selectable fields that many watches select by.
        loop: the event loop that the store belongs to.
        budget: the memory of the logs of all kinds together.

    Attributes:
        synced: a whole state is loaded, and no later event was missed. The follower clears it.
        seen_at: loop time of the newest sign of life from upstream.
        resets: how often the state was replaced by one that cannot have followed it.
    """

    def __init__(
        self,
        format_: Format,
        indexes: Iterable[str] = (),
        *,
        loop: Loop,
        limits: Limits = DEFAULT,
        budget: Budget | None = None,
    ) -> None:
        self.indexes = tuple(indexes)
        self.objects: Objects[Item] = Objects(self.indexes)
        self.hub = Hub(loop, limits, budget)
        self.synced = False
        self.seen_at = 0.0
        self.resets = 0
        self._format = format_
        self._waiters = Waiters()

    @property
    def version(self) -> int:
        """The newest version up to which every event is known."""
        return self.hub.version

    @property
    def oldest(self) -> int:
        """Watches and exact lists from below this version are expired."""
        return self.hub.oldest

    def replace(self, datas: Iterable[bytes], version: int, now: float) -> None:
        """Load a list of all objects at `version`. Differences from the known state become events.

        If the list cannot have followed the known state, all watches end as "reset", and the log begins again.
        """
        self.load([item_of(self._format.head(data), data) for data in datas], version, now)

    def load(self, items: list[Item], version: int, now: float) -> None:
        """Like `replace`, for objects whose heads were read while they arrived."""
        self.seen_at = now
        since = self.version
        loaded = since > 0
        changes = differences(self.objects.items, items, since, version) if loaded else None
        if changes is None:
            self.resets += loaded
            self.objects.load(items)
            self.hub.begin(version)
        else:
            for item in items:
                old = self.objects.items.get(item.key)
                if old is not None and old.version == item.version and old.data != item.data:
                    share(item, old)
                    self.objects.put(item)  # the same version in new bytes, as after an upgrade of the API server
            self.hub.gap(since, version)
            for changed, _, key, new in changes:
                if new is None:
                    self._remove(key, changed, None)
                else:
                    self._put(new)
            self.hub.advance(version)
        self.synced = True
        self._waiters.wake(version)

    def apply(self, type_: str, data: bytes, head: Head, now: float) -> None:
        """Apply one event of the upstream watch.

        Raises:
            OutOfOrder: the event is not later than the known version, or an event before it is missing. Only removals
                may have the known version, because etcd removes all keys of a lease at one version.
        """
        self.seen_at = now
        version = head.version
        if version < self.version or (version == self.version and type_ != DELETED):
            raise OutOfOrder(f"{type_} of version {version} after {self.version}")
        item = item_of(head, data)
        old = self.objects.items.get(item.key)
        if old is not None and old.uid != item.uid:
            raise OutOfOrder(f"{item.key} was recreated, and its removal is missing")
        if type_ == DELETED:
            if old is not None:
                self._remove(item.key, version, item)
            else:
                self.hub.advance(version)
        else:
            self._put(item)
        self._waiters.wake(version)

    def bookmark(self, version: int, now: float) -> None:
        """Record that every event up to `version` was applied."""
        self.seen_at = now
        self.hub.advance(version)
        self._waiters.wake(version)

    def get(self, key: str) -> Item | None:
        """Return one object, None if it does not exist."""
        return self.objects.items.get(key)

    def select(self, selection: Selection, *, after: str = "", at: int | None = None) -> Iterator[Item]:
        """Return the selected objects after a key, in key order, of the newest version or of exactly version `at`.

        Later changes do not affect the iterator.

        Raises:
            Expired: the log does not reach back to `at`.
            ValueError: `at` is later than the known version.
        """
        if at is None or at == self.version:
            return self.objects.select(selection, after)
        if at > self.version:
            raise ValueError(f"version {at} is not known yet")
        return self.objects.select_before(selection, self.hub.log.changed_since(at), after)

    def count(self, namespace: str = "", after: str = "") -> int:
        """Return the number of objects after a key, in a namespace or in all."""
        return self.objects.count(namespace, after)

    def subscribe(
        self, selection: Selection, version: int, view: View, on_frames: OnFrames, on_closed: OnClosed | None = None
    ) -> Subscription:
        """Watch from after `version`. `Hub.subscribe` describes the arguments.

        Raises:
            Expired: the log does not reach back that far.
        """
        return self.hub.subscribe(selection, version, view, on_frames, on_closed)

    async def wait_for(self, version: int, timeout_s: float) -> bool:
        """Wait until `version` is known. Returns whether it is."""
        return version <= self.version or await self._waiters.wait(version, timeout_s)

    def close(self) -> None:
        """End all watches, and leave the memory budget. The store is not used again."""
        self.hub.close()

    def _put(self, item: Item) -> None:
        old = self.objects.items.get(item.key)
        if old is not None:
            share(item, old)
        self.objects.put(item)
        self.hub.publish(Event(ADDED if old is None else MODIFIED, item, old))

    def _remove(self, key: str, version: int, last: Item | None) -> None:
        old = self.objects.remove(key)
        if old is None:
            return
        if last is None:
            last = Item(key, version, self._format.at_version(old.data, version), uid=old.uid)
        share(last, old)
        self.hub.publish(Event(DELETED, last, old))
