"""Watches of the embedded server: views of stored objects, and a queue that is read when the client is ready."""

from __future__ import annotations

import asyncio

from muster.embedded.item import at_version
from muster.readcache.hub.hub import Hub
from muster.readcache.hub.item import Item
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.view import View

PIECES_MAX = 10_000


class JsonView:
    """Objects as they are stored. Subclasses change the JSON."""

    key: str | None = ""

    def encode(self, data: bytes) -> bytes:
        """Convert the JSON of one stored object."""
        return data

    def frame(self, type_: str, item: Item, version: int) -> bytes:
        """Return the line of a watch stream with the object at `version`."""
        data = item.data if item.version == version else at_version(item.data, version)
        return frame(type_, self.encode(data))


PLAIN = JsonView()


def frame(type_: str, data: bytes) -> bytes:
    """Return one line of a watch stream."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), data)


class Watcher:
    """A queue of frames for one watch. If it is full, further events wait in the hub's log.

    Raises:
        Expired: on creation, if the log no longer reaches back to `version`.
    """

    def __init__(self, hub: Hub, selection: Selection, version: int, view: View = PLAIN) -> None:
        self.closed = False
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._subscription = hub.subscribe(selection, version, view, self._add, self._end)

    def take(self) -> list[bytes]:
        """Remove and return the queued frames."""
        taken, self._pieces = self._pieces, []
        if len(taken) >= PIECES_MAX:
            self._subscription.resume()
        return taken

    async def wait(self) -> None:
        """Wait until there are frames, or the watch is closed."""
        if self._pieces or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """End the watch. Queued frames can still be taken."""
        self._subscription.close()
        self._end("closed")

    def _add(self, pieces: list[bytes]) -> None:
        self._pieces += pieces
        if len(self._pieces) >= PIECES_MAX:
            self._subscription.pause()
        self._wake()

    def _end(self, reason: str) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
