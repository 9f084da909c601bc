"""The store: every object of every kind under one resourceVersion, with indexes and an event log for each kind.

It belongs to one event loop and is synchronous. Before `put` or `delete` returns, a change is written to the journal,
applied and sent to watchers, so readers never see a partial change.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Iterator

from muster.embedded.journal import Journal, Record
from muster.embedded.objects import Obj, encode, items, section
from muster.embedded.watchhub import (
    ADDED,
    DEFAULT_CAPACITY,
    DELETED,
    MODIFIED,
    Describe,
    Event,
    Expired,
    Hub,
    Item,
)

Listener = Callable[[str, Item | None, Item | None], None]  # resource, old, new


class Table:
    """All objects of one kind, in key order, with indexes over chosen fields."""

    def __init__(self, resource: str, describe: Describe, indexes: Iterable[str] = (), capacity: int = 0) -> None:
        self.resource = resource
        self.describe = describe
        self.items: dict[str, Item] = {}
        self.keys: list[str] = []
        self.hub = Hub(indexes, capacity or DEFAULT_CAPACITY)
        self._index: dict[tuple[str, str], dict[str, None]] = {}

    def item(self, obj: Obj, key: str, version: int, data: bytes) -> Item:
        """Create the item for an object before it is stored."""
        meta = section(obj, "metadata")
        return Item(
            key,
            version,
            data,
            namespace=meta.get("namespace") or "",
            name=meta.get("name") or "",
            uid=meta.get("uid") or "",
            labels=meta.get("labels") or {},
            fields=self.describe(obj),
            owners=tuple(owner.get("uid", "") for owner in items(meta, "ownerReferences")),
            terminating="deletionTimestamp" in meta,
        )

    def apply(self, key: str, new: Item | None, gone: Item | None = None) -> Item | None:
        """Replace the item of the key and publish the event. Returns the old item."""
        old = self.items.get(key)
        if new is None:
            if old is None or gone is None:
                return old
            del self.items[key]
            del self.keys[bisect.bisect_left(self.keys, key)]
            self._reindex(key, old, None)
            self.hub.publish(Event(DELETED, gone, old))
            return old
        self.items[key] = new
        if old is None:
            if not self.keys or self.keys[-1] < key:
                self.keys.append(key)
            else:
                bisect.insort(self.keys, key)
        self._reindex(key, old, new)
        self.hub.publish(Event(MODIFIED if old is not None else ADDED, new, old))
        return old

    def range(self, namespace: str = "", after: str = "") -> Iterator[str]:
        """Yield the keys after `after` in order, of one namespace or of all."""
        start, end = self._bounds(namespace)
        if after:
            start = max(start, bisect.bisect_right(self.keys, after))
        return iter(self.keys[start:end])

    def count(self, namespace: str = "") -> int:
        """Return the number of objects in a namespace or in all."""
        start, end = self._bounds(namespace)
        return end - start

    def remaining(self, namespace: str, after: str) -> int:
        """Return the number of objects after a key, in a namespace or in all."""
        return self._bounds(namespace)[1] - bisect.bisect_right(self.keys, after)

    def indexed(self, field: str, value: str) -> list[str]:
        """Return the sorted keys whose indexed field has the value."""
        return sorted(self._index.get((field, value), ()))

    def changed_since(self, version: int) -> dict[str, Item | None]:
        """Return for each key that changed after `version` its item at `version`.

        Raises:
            Expired: the event log no longer reaches back that far.
        """
        before: dict[str, Item | None] = {}
        for event in self.hub.since(version):
            before.setdefault(event.item.key, event.old)
        return before

    def range_at(self, version: int, namespace: str = "", after: str = "") -> Iterator[Item]:
        """Yield the objects of `version` in key order.

        Raises:
            Expired: the event log no longer reaches back that far.
        """
        before = self.changed_since(version)
        prefix = namespace + "/" if namespace else ""
        extra = sorted(key for key in before if key not in self.items and key > after and key.startswith(prefix))
        for key in heapq.merge(self.range(namespace, after), extra):
            item = before[key] if key in before else self.items.get(key)
            if item is not None:
                yield item

    def _bounds(self, namespace: str) -> tuple[int, int]:
        if not namespace:
            return 0, len(self.keys)
        # "0" follows "/": the namespace's keys lie between the two.
        return bisect.bisect_left(self.keys, namespace + "/"), bisect.bisect_left(self.keys, namespace + "0")

    def _reindex(self, key: str, old: Item | None, new: Item | None) -> None:
        for field in self.hub.indexes:
            before = old.fields.get(field, "") if old is not None else ""
            after = new.fields.get(field, "") if new is not None else ""
            if before == after:
                continue
            if before:
                bucket = self._index[(field, before)]
                del bucket[key]
                if not bucket:
                    del self._index[(field, before)]
            if after:
                self._index.setdefault((field, after), {})[key] = None


def _nothing(obj: Obj) -> dict[str, str]:
    return {}


class Store:
    """All tables, and the resourceVersion that they share."""

    def __init__(self, journal: Journal | None = None, log_capacity: int = DEFAULT_CAPACITY) -> None:
        self.version = 1
        self.listeners: list[Listener] = []
        self.tables: dict[str, Table] = {}
        self._journal = journal
        self._capacity = log_capacity

    def define(self, resource: str, describe: Describe = _nothing, indexes: Iterable[str] = ()) -> Table:
        """Return the table of a kind; create it if it is missing."""
        table = self.tables.get(resource)
        if table is None:
            table = self.tables[resource] = Table(resource, describe, indexes, self._capacity)
            table.hub.forget_before(self.version)
        return table

    def load(self) -> None:
        """Load the journal. The log's changes also fill the event logs, so that watches can resume."""
        if self._journal is None:
            return
        for record in self._journal.snapshot():
            self.version = max(self.version, record.version)
            if record.resource:
                self._restore(record)
        for table in self.tables.values():
            table.hub.forget_before(self.version)
        for record in self._journal.log():
            self._restore(record)
            self.version = max(self.version, record.version)

    def put(self, resource: str, key: str, obj: Obj) -> Item:
        """Store an object with a new version, which is set in its metadata."""
        table = self.define(resource)
        version = self.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        data = encode(obj)
        item = table.item(obj, key, version, data)
        self._record(Record(version, resource, key, data))
        self.version = version
        old = table.apply(key, item)
        for listener in self.listeners:
            listener(resource, old, item)
        self._compact_when_due()
        return item

    def delete(self, resource: str, key: str, last: Obj | None = None) -> Item:
        """Remove an object. Watchers get its last state (`last`, or the stored one) with the version of the removal.

        Raises:
            KeyError: the object does not exist.
        """
        table = self.define(resource)
        old = table.items[key]
        version = self.version + 1
        if last is None:
            gone = old.at(version)
        else:
            last["metadata"]["resourceVersion"] = str(version)
            gone = table.item(last, key, version, encode(last))
        self._record(Record(version, resource, key, b""))
        self.version = version
        table.apply(key, None, gone)
        for listener in self.listeners:
            listener(resource, old, None)
        self._compact_when_due()
        return gone

    def records(self) -> Iterator[Record]:
        """Yield every object as a record."""
        for table in self.tables.values():
            for item in table.items.values():
                yield Record(item.version, table.resource, item.key, item.data)

    def compact(self) -> None:
        """Write a snapshot and begin a new log."""
        if self._journal is not None:
            self._journal.compact(self.version, self.records())

    def _restore(self, record: Record) -> None:
        table = self.define(record.resource)
        if record.data:
            item = Item(record.key, record.version, record.data)
            table.apply(record.key, table.item(item.object(), record.key, record.version, record.data))
        elif record.key in table.items:
            table.apply(record.key, None, table.items[record.key].at(record.version))

    def _record(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.append(record)

    def _compact_when_due(self) -> None:
        if self._journal is not None and self._journal.wants_compaction:
            self.compact()


__all__ = ["Expired", "Item", "Store", "Table"]
