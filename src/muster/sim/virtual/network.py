"""A simulated network between clients and the API server: messages take time and can get lost.

The server handles a request outside of the client's simulated process. So once a request is sent, its effect does
not depend on the sender.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import Any, NoReturn, Protocol

import msgspec

from muster.embedded.apiserver.core import Answer as CoreAnswer
from muster.embedded.apiserver.request import ADMIN, Request, Response, User
from muster.embedded.apiserver.verbs.watches import WatchResponse
from muster.kube.connection.transport import Answer, Fence, Headers, NotSent, Params
from muster.kube.errors import ServerTimeout, Unavailable
from muster.kube.objects.struct import encode


class Fate(msgspec.Struct, frozen=True):
    """What happens to one request.

    Attributes:
        there_s: the time until the request arrives at the server.
        back_s: the time until the answer arrives at the client.
        refused: the HTTP status with which the server refuses the request; 0 if it handles the request.
        unsent: the client cannot connect.
        lost: the request never reaches the server, and there is no answer.
        broken: the server handles the request, but the connection breaks before the answer arrives.
        silent: the server handles the request, but the answer never arrives.
    """

    there_s: float = 0.001
    back_s: float = 0.001
    refused: int = 0
    unsent: bool = False
    lost: bool = False
    broken: bool = False
    silent: bool = False


class WatchFate(msgspec.Struct, frozen=True):
    """What happens to one watch.

    Attributes:
        refused: the client cannot connect.
        breaks_after_s: the time after which the connection breaks; None if it does not break.
        silent_after_s: the time after which no more events arrive, without an error; None if this does not happen.
    """

    refused: bool = False
    breaks_after_s: float | None = None
    silent_after_s: float | None = None


class Fates(Protocol):
    """Decides what happens to the requests and watches of one client."""

    def request(self, method: str, path: str) -> Fate:
        """Return the fate of this request."""

    def watch(self, path: str) -> WatchFate:
        """Return the fate of this watch."""

    def denied(self, method: str, path: str, body: bytes) -> int:
        """Return the HTTP status with which an admission policy refuses this request; 0 if no policy refuses it."""

    def delay_s(self) -> float:
        """Return the delay of the next batch of watch events."""


class Calm:
    """Fates without faults: every request succeeds after a short delay."""

    def __init__(self, rng: random.Random, slowest_s: float = 0.004) -> None:
        self._rng, self._slowest_s = rng, slowest_s

    def request(self, method: str, path: str) -> Fate:
        """Return a fate in which request and answer arrive."""
        return Fate(self.delay_s(), self.delay_s())

    def watch(self, path: str) -> WatchFate:
        """Return a fate in which the watch does not break."""
        return WatchFate()

    def denied(self, method: str, path: str, body: bytes) -> int:
        """Return 0: no policy refuses requests."""
        return 0

    def delay_s(self) -> float:
        """Return a random short delay."""
        return self._rng.random() * self._slowest_s


class Trace:
    """A hash of all requests to the API server and their answers. It is equal if two runs were equal."""

    def __init__(self) -> None:
        self.requests = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self.listeners: list[Callable[[float, str, Request, int, bytes], None]] = []

    def add(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        """Add one request and its answer to the hash, and call the listeners."""
        self.requests += 1
        self._hash.update(f"{now!r} {client} {request.method} {request.path} {code} ".encode())
        self._hash.update(request.body)
        self._hash.update(body)
        for listener in self.listeners:
            listener(now, client, request, code, body)

    @property
    def digest(self) -> str:
        """The present value of the hash."""
        return self._hash.hexdigest()


class Server(Protocol):
    """An API server, or a wrapper around one."""

    def handle(self, request: Request) -> CoreAnswer:
        """Handle a request, and return the answer."""


class InProcessTransport:
    """A `muster.kube.connection.transport.Transport` to an API server in this process.

    Args:
        core: the API server, or a wrapper around it.
        client: the client's name, for the trace.
        fates: decides what happens to requests and watches.
        trace: records each request that the server handles.
        user: the user in whose name the requests are sent.
    """

    def __init__(self, core: Server, client: str, fates: Fates, trace: Trace, *, user: User = ADMIN) -> None:
        self._core = core
        self._client = client
        self._fates = fates
        self._trace = trace
        self._user = user
        self._server = Context()

    async def close(self) -> None:
        """Do nothing: there are no connections to close."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params,
        body: bytes | None,
        headers: Headers,
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        """Send one request if `fence` allows it. Raises NotSent, Unavailable or ServerTimeout if no answer arrives."""
        if fence is not None:
            fence()
        fate = self._fates.request(method, path)
        if fate.unsent:
            await asyncio.sleep(fate.there_s)
            raise NotSent(0, "ConnectionRefused", "simulated: connection refused")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer | None] = loop.create_future()
        sent_headers = {name.lower(): value for name, value in headers.items()}
        request = Request(method, path, dict(params), sent_headers, body or b"", self._user)
        if not fate.lost:
            loop.call_later(fate.there_s, self._arrive, request, fate, answered, context=self._server)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answered
        except TimeoutError:
            raise ServerTimeout(0, "Timeout", f"simulated: no answer within {timeout_s:g} s") from None
        if answer is None:
            raise Unavailable(0, "ConnectionLost", "simulated: connection lost")
        return answer

    def _arrive(self, request: Request, fate: Fate, answered: asyncio.Future[Answer | None]) -> None:
        loop = asyncio.get_running_loop()
        status = fate.refused or self._fates.denied(request.method, request.path, request.body)
        if status:
            answer = _refusal(status)
            self._trace.add(loop.time(), self._client, request, answer.status, b"")
        else:
            response = self._core.handle(request)
            if not isinstance(response, Response):
                raise TypeError(f"{request.method} {request.path} is not a plain request")
            retry_after = response.headers.get("Retry-After")
            answer = Answer(response.code, response.body, float(retry_after) if retry_after else None)
            self._trace.add(loop.time(), self._client, request, answer.status, response.body)
        if not fate.silent:
            said = None if fate.broken else answer
            loop.call_later(fate.back_s, _settle, answered, said, context=self._server)

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Params, stall_s: float, headers: Headers | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a GET request, and yield its response in chunks."""
        fate = self._fates.watch(path)
        await asyncio.sleep(self._fates.delay_s())
        if fate.refused:
            raise NotSent(0, "ConnectionRefused", "simulated: connection refused")
        sent_headers = {name.lower(): value for name, value in (headers or {}).items()}
        request = Request("GET", path, dict(params), sent_headers, user=self._user)
        response = self._core.handle(request)
        now = asyncio.get_running_loop().time()
        if isinstance(response, WatchResponse):
            self._trace.add(now, self._client, request, 200, b"")
            try:
                yield self._batches(response, fate, now, stall_s)
            finally:
                response.close()
            return
        if not isinstance(response, Response):
            raise TypeError(f"GET {path} is not a watch")
        self._trace.add(now, self._client, request, response.code, response.body)
        if response.code >= 400:
            raise Answer(response.code, response.body).error()
        yield _once(response.body)

    async def _batches(
        self, watch: WatchResponse, fate: WatchFate, began: float, stall_s: float
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends = [began + s for s in (fate.breaks_after_s, fate.silent_after_s) if s is not None]
        end = min(ends) if ends else None
        while True:
            try:
                async with asyncio.timeout_at(end):
                    batch = await watch.batch()
                    if batch is None:
                        return
                    await asyncio.sleep(self._fates.delay_s())
            except TimeoutError:
                break
            yield batch
        if fate.breaks_after_s is None or end != began + fate.breaks_after_s:
            await asyncio.sleep(stall_s)
            raise ServerTimeout(0, "Timeout", f"simulated: silent for {stall_s:g} s at {loop.time():.3f}")
        raise Unavailable(0, "ConnectionLost", "simulated: watch broken")

    def stream(self, method: str, path: str, *, params: Params) -> AbstractAsyncContextManager[Any]:
        """Raises NotImplementedError: simulations have no logs."""
        _not_here(path)

    def websocket(self, path: str, *, params: Params, protocols: Sequence[str]) -> AbstractAsyncContextManager[Any]:
        """Raises NotImplementedError: simulations have no exec or attach."""
        _not_here(path)


def _not_here(path: str) -> NoReturn:
    raise NotImplementedError(f"simulated clusters have no {path}")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _settle(answered: asyncio.Future[Answer | None], answer: Answer | None) -> None:
    if not answered.done():
        answered.set_result(answer)


def _refusal(status: int) -> Answer:
    reasons = {403: "Forbidden", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
    said = {"kind": "Status", "status": "Failure", "reason": reasons[status], "message": "simulated", "code": status}
    return Answer(status, encode(said), 1.0 if status == 429 else None)
