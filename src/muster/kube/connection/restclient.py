"""Sends requests to the API server: retries safe ones, counts them, and fences writes."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import aiohttp
from prometheus_client import Counter, Histogram

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import Answer, Fence, HttpTransport, NotLeading, NotSent, Transport
from muster.kube.errors import ApiError, Invalid, NotFound, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.meta import Resource
from muster.kube.objects.struct import decode

_JSON = "application/json"
_RETRIES = 6
_BACKOFF_BASE_S = 0.1
_BACKOFF_MAX_S = 10.0


@dataclass(slots=True)
class _Writes:
    """Writes of one connection to the API server that may still take effect.

    Attributes:
        under_way: number of writes that were sent and are not answered yet.
        unanswered_at: when the newest write ended without an answer, by the event loop's clock.
    """

    under_way: int = 0
    unanswered_at: float = float("-inf")


class RestClient:
    """Sends requests to one API server. An async context manager; use it from one event loop.

    Retries use exponential backoff with full jitter and honour Retry-After. Retried are:
    - 429, and 503 with Retry-After (the server did not act);
    - connections that could not be made;
    - for idempotent requests, lost connections and gateway errors.

    Every method raises ApiError (see muster.kube.errors), and ConfigError without usable credentials.

    Args:
        config: the cluster.
        user_agent: User-Agent header.
        timeout_s: deadline of each single request.
        connections: most requests in flight.
        retry_for_s: no request is retried longer than this.
        rng: source of jitter.
        metrics: receives counts of requests.
        transport: sends the requests; HTTP by default.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "muster",
        timeout_s: float = 30.0,
        connections: int = 64,
        retry_for_s: float = 60.0,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._rng = rng or random.Random()
        self._metrics = metrics or kube_metrics()
        self._transport = transport or HttpTransport(config, user_agent=user_agent, connections=connections)
        self._resources: dict[tuple[str, str], Resource] = {}
        self._counted: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._writes = _Writes()
        self._may_write: Callable[[], bool] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    def fenced(self, may_write: Callable[[], bool]) -> Self:
        """Return a client on the same connections that asks `may_write` immediately before it sends each write.

        If the answer is False, the write raises NotLeading. Leases and Events are exempt, see `may_be_writing`.
        """
        fenced = copy.copy(self)
        fenced._may_write = may_write
        return fenced

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        verb: str = "",
        idempotent: bool | None = None,
        retry_refused: bool = True,
    ) -> bytes:
        """Send a request and return the body of the answer.

        Args:
            method: HTTP method.
            path: below the server's URL, such as `/version`.
            params: query parameters.
            body: JSON, unless `headers` has another Content-Type.
            headers: additional headers.
            verb: name in the metrics, `method` by default.
            idempotent: whether it may be sent twice; by default all but POST and PATCH may.
            retry_refused: whether to retry after 429, or after 503 with Retry-After.
        """
        _check_path(path)
        verb = verb or method
        if idempotent is None:
            idempotent = method not in ("POST", "PATCH")
        sent_headers = {"Content-Type": _JSON} if body is not None else {}
        sent_headers.update(headers or {})
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._retry_for_s
        write = _is_write(method, path)
        for attempt in range(_RETRIES):
            error: ApiError
            started = time.perf_counter()
            try:
                with self._noted(write):
                    answer = await self._transport.request(
                        method,
                        path,
                        params=params or {},
                        body=body,
                        headers=sent_headers,
                        timeout_s=self._timeout_s,
                        fence=self._fence(method, path) if write else None,
                    )
                self._count(verb, answer, started)
                if answer.status < 300:
                    return answer.body
                error = answer.error()
            except ApiError as lost:
                self._metrics.requests.labels(verb, str(lost.status or lost.reason)).inc()
                error = lost
            if attempt == _RETRIES - 1 or not _may_retry(error, idempotent, retry_refused):
                raise error
            delay_s = self._delay_s(attempt, error.retry_after_s)
            if clock() + delay_s > give_up_at:
                raise error
            self._metrics.retries.labels(verb, error.reason or str(error.status)).inc()
            await asyncio.sleep(delay_s)
        raise AssertionError("unreachable")

    def may_be_writing(self, within_s: float) -> bool:
        """Returns whether a write may still take effect: it is under way, or got no answer within the last `within_s`.

        Writes of Leases and Events do not count: Leases have preconditions, and no decision depends on Events.
        """
        writes = self._writes
        return writes.under_way > 0 or asyncio.get_running_loop().time() - writes.unanswered_at < within_s

    def require_leading(self, what: str) -> None:
        """Raise NotLeading if this client is fenced and may not write.

        For changes outside the API server, such as at a cloud.

        Args:
            what: the change that is about to be made, such as "delete INSTANCE".
        """
        if self._may_write is not None and not self._may_write():
            raise NotLeading(what)

    def _fence(self, method: str, path: str) -> Fence | None:
        may_write = self._may_write
        if may_write is None:
            return None

        def fence() -> None:
            if not may_write():
                raise NotLeading(f"{method} {path}")

        return fence

    @contextmanager
    def _noted(self, write: bool) -> Iterator[None]:
        if not write:
            yield
            return
        self._writes.under_way += 1
        try:
            yield
        except NotSent:
            raise
        except BaseException:
            self._writes.unanswered_at = asyncio.get_running_loop().time()
            raise
        finally:
            self._writes.under_way -= 1

    def stream(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open an answer of unknown length, such as a log. Read its `content`."""
        _check_path(path)
        return self._transport.stream(method, path, params=params or {})

    def websocket(
        self, path: str, *, params: Mapping[str, str] | None = None, protocols: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket, such as exec with protocol `v5.channel.k8s.io`."""
        _check_path(path)
        return self._transport.websocket(path, params=params or {}, protocols=protocols)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Ask the server for the resource of a kind; the answer is cached.

        Raises NotFound if the server does not serve it.
        """
        known = self._resources.get((api_version, kind))
        if known is not None:
            return known
        group, _, version = api_version.rpartition("/")
        body = await self.request("GET", f"/apis/{api_version}" if group else f"/api/{api_version}")
        for entry in decode(body, dict)["resources"]:
            if "/" not in entry["name"]:
                found = Resource(group, version, entry["name"], entry["kind"], entry["namespaced"])
                self._resources[(api_version, entry["kind"])] = found
        if (api_version, kind) not in self._resources:
            raise NotFound(404, "NotFound", f"{self.config.server} serves no kind {kind} in {api_version}")
        return self._resources[(api_version, kind)]

    def _delay_s(self, attempt: int, retry_after_s: float | None) -> float:
        backoff_s = self._rng.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_BASE_S * 2**attempt))
        return backoff_s if retry_after_s is None else retry_after_s + backoff_s

    def _count(self, verb: str, answer: Answer, started: float) -> None:
        counted = self._counted.get((verb, answer.status))
        if counted is None:
            requests = self._metrics.requests.labels(verb, str(answer.status))
            counted = self._counted[(verb, answer.status)] = (requests, self._metrics.request_seconds.labels(verb))
        counted[0].inc()
        counted[1].observe(time.perf_counter() - started)


def _check_path(path: str) -> None:
    """Refuse a path that a URL library would normalize: `/a/../b` and `/a//b` would reach another object.

    Raises:
        Invalid: a segment of the path is empty, `.` or `..`, also if it is escaped.
    """
    bare = path.partition("?")[0]
    if "//" not in bare and "/." not in bare and "%" not in bare and "#" not in bare:
        return
    if "#" in bare or any(unquote(segment) in ("", ".", "..") for segment in bare.split("/")[1:]):
        raise Invalid(0, "InvalidPath", f"{path!r} cannot be requested: a segment of it is empty, '.' or '..'")


def _is_write(method: str, path: str) -> bool:
    return method != "GET" and "/leases" not in path and "/events" not in path


def _may_retry(error: ApiError, idempotent: bool, retry_refused: bool) -> bool:
    if isinstance(error, NotSent):
        return error.reason != "TLSFailure" and not isinstance(error, NotLeading)
    if isinstance(error, TooManyRequests):
        return retry_refused
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        return retry_refused
    return idempotent and isinstance(error, Unavailable | ServerTimeout)
