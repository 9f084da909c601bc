"""An index over a cache, kept up to date one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
IndexFunction = Callable[[T], Iterable[str]]
"""Returns the index values of an object: none, one or several."""


class Index(Mapping[str, Mapping[str, T]], Generic[T]):
    """Value -> key -> object. A value without objects is absent."""

    def __init__(self, function: IndexFunction[T]) -> None:
        self._function = function
        self._found: dict[str, dict[str, T]] = {}

    def __getitem__(self, value: str) -> Mapping[str, T]:
        return self._found[value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def update(self, key: str, old: T | None, new: T | None) -> None:
        """Update the index: the object at `key` changed from `old` to `new`."""
        before = set(self._function(old)) if old is not None else set()
        after = set(self._function(new)) if new is not None else set()
        for value in before - after:
            bucket = self._found[value]
            del bucket[key]
            if not bucket:
                del self._found[value]
        for value in after:
            assert new is not None
            self._found.setdefault(value, {})[key] = new
