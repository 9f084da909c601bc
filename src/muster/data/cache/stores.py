"""Stores that readers with the same credentials share, with their connections. The last reader closes its store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from muster.sdk.data.store import Store


class _Entry:
    def __init__(self, opening: asyncio.Task[Store]) -> None:
        self.opening = opening
        self.users = 0


class SharedStores:
    """Open stores, by a key that is equal only for equal jobs, stores and credentials.

    Args:
        close: closes a store in the background.
    """

    def __init__(self, close: Callable[[Store], object]) -> None:
        self._close = close
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def enter(self, key: str, opening: Callable[[], Awaitable[Store]]) -> Store:
        """Return the store, opened by the first reader. The caller calls `leave` once. Raises StoreError."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(asyncio.create_task(_open(opening)))
        entry.users += 1
        try:
            return await asyncio.shield(entry.opening)
        except BaseException:
            self._end(key, entry)
            raise

    def leave(self, key: str) -> None:
        """End one use of the store."""
        entry = self._entries.get(key)
        if entry is not None:
            self._end(key, entry)

    def _end(self, key: str, entry: _Entry) -> None:
        entry.users -= 1
        failed = entry.opening.done() and (entry.opening.cancelled() or entry.opening.exception() is not None)
        if (entry.users <= 0 or failed) and self._entries.get(key) is entry:
            del self._entries[key]
        if entry.users <= 0:
            entry.opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Store]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._close(opening.result())


async def _open(opening: Callable[[], Awaitable[Store]]) -> Store:
    return await opening()
