"""The body of a message, as it arrives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

FULL_BYTES = 256 << 10


class BodyLost(ConnectionError):
    """The peer closed the connection before the end of the body."""


class Body:
    """Chunks of a body between the connection that receives them and one reader.

    Args:
        pause: stop receiving, because the reader is slow.
        resume: receive again.

    Attributes:
        complete: the end has arrived.
        trailers: headers after a chunked body.
    """

    __slots__ = ("_chunks", "_lost", "_pause", "_paused", "_resume", "_size", "_waiter", "complete", "trailers")

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.complete = False
        self.trailers: list[tuple[str, str]] = []
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._pause, self._resume = pause, resume
        self._paused = False
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether `read` would wait."""
        return not self._chunks and not self.complete and self._lost is None

    def feed(self, data: bytes) -> None:
        """Add data."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > FULL_BYTES:
            self._paused = True
            self._pause()
        self._wake()

    def end(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def lose(self, error: Exception | None) -> None:
        """The connection is lost. Does nothing if the body is complete."""
        if not self.complete and self._lost is None:
            self._lost = error or BodyLost("the peer closed the connection")
            self._wake()

    async def read(self) -> bytes:
        """Return the data that has arrived, b"" at the end. Raises ConnectionError if the rest will not arrive."""
        while not self._chunks:
            if self.complete:
                return b""
            if self._lost is not None:
                raise self._lost if isinstance(self._lost, ConnectionError) else BodyLost(str(self._lost))
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self._resume()
        return data

    def discard(self) -> None:
        """Drop what has arrived."""
        self._chunks.clear()
        self._size = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
