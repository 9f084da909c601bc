"""The store: every object of every kind under one resourceVersion, with indexes and an event log for each kind.

It belongs to one event loop and is synchronous. Before `put` or `delete` returns, a change is written to the journal,
applied and sent to watchers, so readers never see a partial change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from muster.embedded.item import Item
from muster.embedded.journal import Journal, Record
from muster.embedded.objects import Obj, decode, encode
from muster.readcache.hub.event import ADDED, DELETED, MODIFIED, Event
from muster.readcache.hub.hub import Hub
from muster.readcache.hub.limits import DEFAULT, Limits
from muster.readcache.hub.objects import Objects
from muster.readcache.hub.selection import Selection

Describe = Callable[[Obj], dict[str, str]]
Listener = Callable[[str, Item | None, Item | None], None]  # resource, old, new


class Table(Objects[Item]):
    """All objects of one kind, in key order, with indexes over chosen fields, and the hub of their changes."""

    def __init__(
        self, resource: str, describe: Describe, indexes: Iterable[str] = (), limits: Limits = DEFAULT
    ) -> None:
        super().__init__(indexes)
        self.resource = resource
        self.describe = describe
        self.hub = Hub(limits=limits)

    def item(self, obj: Obj, key: str, data: bytes) -> Item:
        """Create the item for an object before it is stored."""
        return Item(key, data, obj, self.describe(obj))

    def apply(self, key: str, new: Item | None, gone: Item | None = None) -> Item | None:
        """Replace the item of the key and publish the event. Returns the old item."""
        if new is None:
            if gone is None or key not in self.items:
                return None
            old = self.remove(key)
            self.hub.publish(Event(DELETED, gone, old))
        else:
            old = self.put(new)
            self.hub.publish(Event(ADDED if old is None else MODIFIED, new, old))
        return old

    def select_at(self, version: int, selection: Selection, after: str = "") -> Iterator[Item]:
        """Yield the selected objects of `version` after a key, in key order.

        Raises:
            Expired: the event log no longer reaches back that far.
        """
        before = cast("dict[str, Item | None]", self.hub.log.changed_since(version))
        return self.select_before(selection, before, after)


def _nothing(obj: Obj) -> dict[str, str]:
    return {}


class Store:
    """All tables, and the resourceVersion that they share."""

    def __init__(self, journal: Journal | None = None, limits: Limits = DEFAULT) -> None:
        self.version = 1
        self.listeners: list[Listener] = []
        self.tables: dict[str, Table] = {}
        self._journal = journal
        self._limits = limits

    def define(self, resource: str, describe: Describe = _nothing, indexes: Iterable[str] = ()) -> Table:
        """Return the table of a kind; create it if it is missing."""
        table = self.tables.get(resource)
        if table is None:
            table = self.tables[resource] = Table(resource, describe, indexes, self._limits)
            table.hub.begin(self.version)
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
            table.hub.begin(self.version)
        for record in self._journal.log():
            self._restore(record)
            self.version = max(self.version, record.version)

    def put(self, resource: str, key: str, obj: Obj) -> Item:
        """Store an object with a new version, which is set in its metadata."""
        table = self.define(resource)
        version = self.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        data = encode(obj)
        item = table.item(obj, key, data)
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
            gone = table.item(last, key, encode(last))
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
            table.apply(record.key, table.item(decode(record.data), record.key, record.data))
        elif record.key in table.items:
            table.apply(record.key, None, table.items[record.key].at(record.version))

    def _record(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.append(record)

    def _compact_when_due(self) -> None:
        if self._journal is not None and self._journal.wants_compaction:
            self.compact()
