"""Leases: a file that a reader uses is not evicted. A lease ends with its connection at the latest."""

from __future__ import annotations

from collections import Counter
from typing import Final

MAX_LEASES: Final = 32
"""Of a connection. With one more, the oldest ends: its descriptor stays valid, but the file may be evicted."""


class Leases:
    """Counts the readers of each file."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def holder(self) -> Holdings:
        """Return the leases of a new connection."""
        return Holdings(self._counts)


class Holdings:
    """The leases of one connection."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._held: dict[int, str] = {}
        self._last = 0

    def take(self, name: str) -> int:
        """Lease a file, and return the number of the lease."""
        while len(self._held) >= MAX_LEASES:
            self.end(next(iter(self._held)))
        self._last += 1
        self._held[self._last] = name
        self._counts[name] += 1
        return self._last

    def end(self, number: int) -> None:
        """End a lease; an unknown number is ignored."""
        name = self._held.pop(number, None)
        if name is not None:
            self._counts[name] -= 1
            if self._counts[name] <= 0:
                del self._counts[name]

    def end_all(self) -> None:
        """End all leases of the connection."""
        for number in list(self._held):
            self.end(number)
