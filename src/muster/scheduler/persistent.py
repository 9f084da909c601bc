"""A mapping that never changes, with cheap new versions that have other entries, and a journal of changes.

The scheduler's memos use both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
JOURNALED = 20_000
"""Number of changes that a journal keeps. Readers that are further behind must read everything again."""


class PersistentMap(Generic[K, V]):
    """A mapping that never changes: `with_changes` returns a new version, which shares most of this one.

    Attributes:
        base: most of the entries; shared by many versions.
        recent: changes since `base`; None for a removed entry.
    """

    __slots__ = ("base", "recent")

    def __init__(self, base: Mapping[K, V] | None = None, recent: Mapping[K, V | None] | None = None) -> None:
        """Create a version. Neither argument may change afterwards."""
        self.base: Mapping[K, V] = base if base is not None else {}
        self.recent: Mapping[K, V | None] = recent if recent is not None else {}

    def get(self, key: K) -> V | None:
        """Return the value; None if there is none."""
        return self.recent[key] if key in self.recent else self.base.get(key)

    def items(self) -> Iterable[tuple[K, V]]:
        """Return the entries, in no particular order."""
        if not self.recent:
            return self.base.items()
        return [(key, value) for key, value in {**self.base, **self.recent}.items() if value is not None]

    def with_changes(self, changes: Mapping[K, V | None]) -> PersistentMap[K, V]:
        """Return a version with these values; None removes an entry."""
        return self.with_recent({**self.recent, **changes}) if changes else self

    def with_recent(self, recent: Mapping[K, V | None]) -> PersistentMap[K, V]:
        """Return a version with the same base, and with `recent` instead of the present changes.

        The caller must not modify `recent` afterwards. If `recent` has more entries than twice the square root of the
        number of entries in `base`, both are copied into a new base.
        """
        if len(recent) ** 2 <= 4 * len(self.base):
            return PersistentMap(self.base, recent)
        if self.base:
            recent = {**self.base, **recent}
        return PersistentMap({key: value for key, value in recent.items() if value is not None})


class Journal:
    """A list of the names of changed things, in order. Each reader remembers the position up to which it has read."""

    __slots__ = ("_names", "_start")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._start = 0

    @property
    def end(self) -> int:
        """Position after the last change."""
        return self._start + len(self._names)

    def add(self, name: str) -> None:
        """Record a change."""
        self._names.append(name)
        if len(self._names) > 2 * JOURNALED:
            self._drop(JOURNALED)

    def extend(self, names: Iterable[str]) -> None:
        """Record changes."""
        self._names.extend(names)
        surplus = len(self._names) - JOURNALED
        if surplus > JOURNALED:
            self._drop(surplus)

    def skip(self) -> None:
        """Record a change without a name. After it, all readers must read everything again."""
        self._drop(len(self._names))
        self._start += 1

    def since(self, position: int) -> Collection[str] | None:
        """Return the names changed since the position, each once; None if these are not known any more."""
        if position < self._start:
            return None
        return dict.fromkeys(self._names[position - self._start :])

    def _drop(self, count: int) -> None:
        del self._names[:count]
        self._start += count
