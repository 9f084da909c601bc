"""Connections to peers: opened on demand, authenticated, and used again."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeGuard

from muster.data.cache.sinks import WriteFailed
from muster.data.peers.frames import Code, Message, PeerError, Stream, code_of, open_stream
from muster.data.peers.gangs import Gang
from muster.data.peers.transfer import Pace

IDLE_MAX: Final = 4
"""Most idle connections to one peer for one gang."""
IDLE_S: Final = 30.0
"""An idle connection is used again within this time. The server waits longer."""
_BROKEN: Final = (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError)


class Connections:
    """Connections of this node to its peers.

    Args:
        pace: limits of time.
        mark: called with each socket and the UID of its job, before it carries the job's bytes.
    """

    def __init__(self, pace: Pace, mark: Callable[[socket.socket, str], None] = lambda sock, uid: None) -> None:
        self.pace = pace
        self._mark = mark
        self._idle: defaultdict[tuple[str, str, int], list[tuple[float, Stream]]] = defaultdict(list)

    @asynccontextmanager
    async def use(self, address: str, gang: Gang) -> AsyncIterator[Stream]:
        """Yield a connection. After an error it is closed. Raises PeerError with the reason."""
        key = (address, gang.uid, gang.attempt)
        stream = self._take(key)
        try:
            if stream is None:
                stream = await open_stream(address, gang.uid, gang.attempt, gang.key, self.pace.connect_s)
                self._mark(stream.writer.get_extra_info("socket"), gang.uid)
            yield stream
        except BaseException as error:
            if stream is not None:
                stream.close()
            raise _as_peer_error(error) from None
        self._give_back(key, stream)

    async def ask(self, stream: Stream, message: Message) -> Message:
        """Send a request and return its answer. Raises PeerError, OSError, TimeoutError, IncompleteReadError.

        The peer must show a sign of life within `silence_s`, until it answers.
        """
        await stream.send(message)
        while True:
            async with asyncio.timeout(self.pace.silence_s):
                answer = await stream.receive()
            if "error" in answer:
                raise PeerError(code_of(answer))
            if not answer.get("pending"):
                return answer

    def close(self) -> None:
        """Close idle connections."""
        for streams in self._idle.values():
            for _, stream in streams:
                stream.close()
        self._idle.clear()

    def sweep(self) -> None:
        """Close connections that were idle for long."""
        before = time.monotonic() - IDLE_S
        for key, streams in list(self._idle.items()):
            for since, stream in streams:
                if since < before:
                    stream.close()
            streams[:] = [each for each in streams if each[0] >= before]
            if not streams:
                del self._idle[key]

    def _take(self, key: tuple[str, str, int]) -> Stream | None:
        streams = self._idle.get(key)
        while streams:
            since, stream = streams.pop()
            if time.monotonic() - since < IDLE_S and not stream.reader.at_eof():
                return stream
            stream.close()
        return None

    def _give_back(self, key: tuple[str, str, int], stream: Stream) -> None:
        streams = self._idle[key]
        if len(streams) < IDLE_MAX:
            streams.append((time.monotonic(), stream))
        else:
            stream.close()


def announced(answer: Message, length_max: int) -> tuple[int, str]:
    """Return length and checksum of the raw bytes that follow an answer. Raises PeerError."""
    length, sha256 = answer.get("length"), answer.get("sha256")
    if (
        not isinstance(length, int)
        or not 0 <= length <= length_max
        or not isinstance(sha256, str)
        or not is_sha256(sha256)
    ):
        raise PeerError(Code.MALFORMED, "the peer announced no valid length and checksum")
    return length, sha256


def is_sha256(value: object) -> TypeGuard[str]:
    """Return whether the value is a SHA-256 in hex."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _as_peer_error(error: BaseException) -> BaseException:
    if isinstance(error, PeerError | WriteFailed):
        return error
    if isinstance(error, TimeoutError):
        return PeerError(Code.SLOW)
    return PeerError(Code.GONE, str(error)) if isinstance(error, _BROKEN) else error
