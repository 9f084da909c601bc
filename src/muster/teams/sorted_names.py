"""A set of names with fast access to its smallest ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

_SLACK = 64


class Names:
    """A set of names with a heap; a removed name leaves the heap later."""

    __slots__ = ("_heap", "_names")

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._heap: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Add a name."""
        if name not in self._names:
            self._names.add(name)
            heapq.heappush(self._heap, name)

    def discard(self, name: str) -> None:
        """Remove a name if it is there."""
        self._names.discard(name)
        if len(self._heap) > 2 * len(self._names) + _SLACK:
            self._heap = sorted(self._names)

    def smallest(self, count: int) -> list[str]:
        """Return the first `count` names in order, or all if there are fewer."""
        if count <= 0 or not self._names:
            return []
        if 4 * count > len(self._names):
            return sorted(self._names)[:count]
        found: list[str] = []
        while len(found) < count:
            name = heapq.heappop(self._heap)
            if name in self._names and (not found or found[-1] != name):
                found.append(name)
        for name in found:
            heapq.heappush(self._heap, name)
        return found
