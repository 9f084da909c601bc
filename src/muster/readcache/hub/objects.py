"""All objects of one kind at their newest version, in key order, with indexes."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from muster.readcache.hub.item import Item
from muster.readcache.hub.selection import Selection

AnyItem = TypeVar("AnyItem", bound=Item)


class Objects(Generic[AnyItem]):
    """Objects by key, sorted by key, and by the values of indexed fields."""

    def __init__(self, indexes: Iterable[str] = ()) -> None:
        self.items: dict[str, AnyItem] = {}
        self.bytes = 0
        self._indexes = tuple(indexes)
        self._keys: list[str] = []
        self._sorted: list[AnyItem] = []
        self._index: dict[tuple[str, str], dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: AnyItem) -> AnyItem | None:
        """Insert or replace an object. Returns the old one."""
        key = item.key
        old = self.items.get(key)
        self.items[key] = item
        self.bytes += len(item.data)
        if old is None:
            place = len(self._keys)
            if place and self._keys[-1] > key:
                place = bisect.bisect_left(self._keys, key)
            self._keys.insert(place, key)
            self._sorted.insert(place, item)
        else:
            self._sorted[bisect.bisect_left(self._keys, key)] = item
            self.bytes -= len(old.data)
        if self._indexes:
            self._reindex(key, old, item)
        return old

    def remove(self, key: str) -> AnyItem | None:
        """Remove an object and return it; None if there is none."""
        old = self.items.pop(key, None)
        if old is not None:
            place = bisect.bisect_left(self._keys, key)
            del self._keys[place]
            del self._sorted[place]
            self.bytes -= len(old.data)
            if self._indexes:
                self._reindex(key, old, None)
        return old

    def load(self, items: Iterable[AnyItem]) -> None:
        """Replace all objects."""
        self.items = {item.key: item for item in items}
        self._keys = sorted(self.items)
        self._sorted = [self.items[key] for key in self._keys]
        self.bytes = sum(len(item.data) for item in self._sorted)
        self._index = {}
        if self._indexes:
            for item in self._sorted:
                self._reindex(item.key, None, item)

    def select(self, selection: Selection, after: str = "") -> Iterator[AnyItem]:
        """Yield the selected objects after a key, in key order. Later changes do not affect the iterator."""
        found = self._candidates(selection, after)
        if selection.everything:
            return iter(found)
        return filter(selection.matches, found)

    def select_before(
        self, selection: Selection, before: Mapping[str, AnyItem | None], after: str = ""
    ) -> Iterator[AnyItem]:
        """Yield what `select` would have yielded before changes. `before` has the earlier item of each changed key."""
        start, end = self._bounds(selection.only_namespace or "", after)
        unchanged = (item for item in self._sorted[start:end] if item.key not in before)
        changed = sorted((item for item in before.values() if item and item.key > after), key=_key)
        return filter(selection.matches, heapq.merge(unchanged, changed, key=_key))

    def range(self, namespace: str = "", after: str = "") -> list[str]:
        """Return the keys after `after` in order, of one namespace or of all."""
        start, end = self._bounds(namespace, after)
        return self._keys[start:end]

    def count(self, namespace: str = "", after: str = "") -> int:
        """Return the number of objects after a key, in a namespace or in all."""
        start, end = self._bounds(namespace, after)
        return max(0, end - start)

    def indexed(self, field: str, value: str) -> list[str]:
        """Return the sorted keys whose indexed field has the value."""
        return sorted(self._index.get((field, value), ()))

    def _candidates(self, selection: Selection, after: str) -> list[AnyItem]:
        bucket, namespace = selection.bucket, selection.only_namespace or ""
        if bucket is not None and bucket[0] in self._indexes:
            keys = self.indexed(*bucket)
            return [self.items[key] for key in keys if key > after]
        name = selection.only_name
        if name is not None and (namespace or not (self._keys and "/" in self._keys[0])):
            found = self.items.get(f"{namespace}/{name}" if namespace else name)
            return [found] if found is not None and found.key > after else []
        start, end = self._bounds(namespace, after)
        return self._sorted[start:end]

    def _bounds(self, namespace: str, after: str = "") -> tuple[int, int]:
        keys = self._keys
        start, end = 0, len(keys)
        if namespace:
            # "0" follows "/": the namespace's keys lie between the two.
            start, end = bisect.bisect_left(keys, namespace + "/"), bisect.bisect_left(keys, namespace + "0")
        return (max(start, bisect.bisect_right(keys, after)) if after else start), end

    def _reindex(self, key: str, old: Item | None, new: Item | None) -> None:
        for field in self._indexes:
            before = old.fields.get(field, "") if old is not None else None
            after = new.fields.get(field, "") if new is not None else None
            if before == after:
                continue
            if before is not None:
                entries = self._index[(field, before)]
                del entries[key]
                if not entries:
                    del self._index[(field, before)]
            if after is not None:
                self._index.setdefault((field, after), {})[key] = None


def _key(item: Item) -> str:
    return item.key
