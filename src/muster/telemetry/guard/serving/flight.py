"""One request to Prometheus, and the clients that get its answer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Final

from muster.telemetry.guard.serving.client import Answer
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import Upstream, UpstreamRequest

log = logging.getLogger(__name__)

_PASSED: Final = frozenset(
    {
        "cache-control",
        "content-encoding",
        "content-language",
        "content-type",
        "deprecation",
        "expires",
        "last-modified",
        "retry-after",
        "server-timing",
        "vary",
        "warning",
    }
)
"""Headers of answers that clients get. Others may be meant for one client (Set-Cookie) or one connection."""


class Reader:
    """One client of an answer. Leave it when the client has everything, or is gone.

    Attributes:
        position: number of the next chunk.
        lag_s: for how long it held up others.
        cut: it gets no more bytes, because it held up others for too long.
        on_cut: called then.
    """

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._wakeup: asyncio.Future[None] | None = None
        self.position = 0
        self.lag_s = 0.0
        self.cut = False
        self.on_cut: Callable[[], None] | None = None

    @property
    def status(self) -> int:
        """HTTP status of the answer; 0 before its head."""
        return self._flight.status

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of the answer for clients."""
        return self._flight.headers

    @property
    def length(self) -> int | None:
        """Bytes of the body, if they are known."""
        return self._flight.length

    async def head(self) -> None:
        """Wait until the answer may begin. Raises Failure."""
        flight = self._flight
        while not flight.begun and not self.cut:
            await self._wait()
        self._check()

    @property
    def waits(self) -> bool:
        """Whether `chunk` would wait."""
        return self.position >= self._flight.end and not self._flight.done and not self.cut

    async def chunk(self) -> bytes:
        """Return the next bytes, or none at the end. Raises Failure: the answer broke off."""
        flight = self._flight
        while self.waits:
            await self._wait()
        if self.position < flight.end and not self.cut:
            found = flight.take(self)
            if found:
                return found
        self._check()
        return b""

    def whole(self) -> bytes | None:
        """Return the bytes that are left if all of them are here; None if more may come, or the answer broke off."""
        flight = self._flight
        if not flight.done or flight.failure is not None or self.cut:
            return None
        chunks = []
        while self.position < flight.end:
            chunks.append(flight.take(self))
        return b"".join(chunks)

    def leave(self) -> None:
        """Stop reading. The request to Prometheus ends with its last reader."""
        self._flight.left(self)

    def end_early(self) -> None:
        """Give no more bytes to this reader, which holds up the others."""
        self.cut = True
        self.wake()
        if self.on_cut is not None:
            self.on_cut()

    def wake(self) -> None:
        """Continue: there are bytes, the end, or a failure."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _check(self) -> None:
        if self.cut:
            raise Failure("slow_client", 408, "this client read too slowly for an answer that it shares with others")
        if self._flight.failure is not None:
            raise self._flight.failure

    async def _wait(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None


class Flight:
    """A request to Prometheus, whose answer goes to all who joined before its first bytes were dropped.

    Its memory is bounded: it reads on when the slowest reader has taken enough. A reader that holds up others for more
    than `lag_s` in all is cut off.

    Args:
        request: what is sent.
        upstream: sends it.
        settings: of the window and of slow readers.
        ended: called once, when nothing more comes from Prometheus.

    Attributes:
        status: of the answer; 0 before its head.
        headers: of the answer, for clients.
        length: bytes of the body, if they are known.
        begun: clients may be sent the head.
        done: nothing more comes.
        failure: why the answer broke off.
        bytes: of the body so far.
    """

    def __init__(
        self,
        request: UpstreamRequest,
        upstream: Upstream,
        settings: ServingSettings,
        ended: Callable[[Flight], None],
    ) -> None:
        self.request = request
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()
        self.length: int | None = None
        self.begun = False
        self.done = False
        self.failure: Failure | None = None
        self.bytes = 0
        self._upstream = upstream
        self._settings = settings
        self._ended = ended
        self._readers: set[Reader] = set()
        self._chunks: deque[bytes] = deque()
        self._first = 0
        self._waiting_bytes = 0
        self._taken: asyncio.Future[None] | None = None
        self._abandoned = False
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._finish)

    @property
    def end(self) -> int:
        """Number of chunks so far."""
        return self._first + len(self._chunks)

    @property
    def joinable(self) -> bool:
        """Whether a new reader still gets the whole answer."""
        return self._first == 0 and not self.done and not self._abandoned

    def join(self) -> Reader:
        """Add a reader."""
        reader = Reader(self)
        self._readers.add(reader)
        return reader

    def take(self, reader: Reader) -> bytes:
        """Return the next bytes for a reader."""
        found = self._chunks[reader.position - self._first]
        reader.position += 1
        if reader.position - 1 == self._first:
            self._drop()
        self._went_on()
        return found

    def left(self, reader: Reader) -> None:
        """Forget a reader, and the request with the last one."""
        self._readers.discard(reader)
        if self._readers:
            self._drop()
            self._went_on()
        else:
            self.cancel()

    def cancel(self) -> asyncio.Task[None]:
        """End the request, and return the task to wait for."""
        self._abandoned = True
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        try:
            with closing(await self._upstream.send(self.request)) as answer:
                self._take_head(answer)
                if answer.here:
                    await self._take_body(answer)
                else:
                    async with asyncio.timeout(self._settings.answer_s):
                        await self._take_body(answer)
            if not self.begun:
                self.length = self.bytes
        except Failure as failure:
            self.failure = failure
        except TimeoutError:
            self.failure = Failure("timeout", 504, f"the answer took more than {self._settings.answer_s:g} s")

    def _finish(self, task: asyncio.Task[None]) -> None:
        """End the flight. A task that was cancelled before it began gets here as well."""
        if task.cancelled():
            self.failure = Failure("client_gone", 499, "the request was ended")
        elif (error := task.exception()) is not None:
            log.error("a request to Prometheus failed by a fault of the guard", exc_info=error)
            self.failure = Failure("error", 500, "the guard failed; its log has the reason")
        self.begun = self.done = True
        self._ended(self)
        self._wake()

    def _take_head(self, answer: Answer) -> None:
        if 300 <= answer.status < 400:
            raise Failure(
                "broken", 502, f"Prometheus answered with a redirect ({answer.status}); set upstream.url to its end"
            )
        self.length = answer.length
        self._check_size(self.length or 0)
        self.headers = tuple((name, value) for name, value in answer.headers if name.lower() in _PASSED)
        self.status = answer.status

    async def _take_body(self, answer: Answer) -> None:
        while chunk := await answer.read(self._settings.stall_s):
            self.bytes += len(chunk)
            self._check_size(self.bytes)
            self._add(chunk)
            while self._waiting_bytes >= self._settings.window_bytes:
                await self._wait_for_room()

    def _check_size(self, size_bytes: int) -> None:
        limit = self.request.max_bytes
        if limit is not None and size_bytes > limit:
            raise Failure(
                "too_large",
                422,
                f"the answer has more than {limit} bytes, the limit of this caller; "
                "ask for fewer series, a shorter range or a longer step",
            )

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._waiting_bytes += len(chunk)
        if not self.begun and self._waiting_bytes >= self._settings.hold_bytes:
            self.begun = True
        if self.begun:
            self._wake()

    def _drop(self) -> None:
        """Drop the chunks that all readers have taken."""
        slowest = min((reader.position for reader in self._readers), default=self.end)
        while self._first < slowest:
            self._waiting_bytes -= len(self._chunks.popleft())
            self._first += 1

    async def _wait_for_room(self) -> None:
        """Wait until a reader takes something. Cut those that hold up others for too long."""
        loop = asyncio.get_running_loop()
        held_up = any(reader.position == self.end for reader in self._readers)
        slow = [reader for reader in self._readers if reader.position == self._first] if held_up else []
        patience_s = min((self._settings.lag_s - reader.lag_s for reader in slow), default=None)
        self._taken = loop.create_future()
        started = loop.time()
        try:
            async with asyncio.timeout(patience_s):
                await self._taken
        except TimeoutError:
            for reader in slow:
                self._readers.discard(reader)
                reader.end_early()
            self._drop()
        finally:
            self._taken = None
            for reader in slow:
                reader.lag_s += loop.time() - started

    def _went_on(self) -> None:
        """Continue to read from Prometheus if that waits for readers."""
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()
