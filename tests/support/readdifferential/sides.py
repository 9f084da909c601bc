"""The two sides that are compared: a real API server, and the read cache's own code in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlencode

import aiohttp
from yarl import URL

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import HttpTransport
from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.freshness import Limits
from muster.readcache.reads.reads import Reads
from muster.readcache.reads.selecting import indexes_of
from muster.readcache.reads.targets import is_true, kind_key, parse_target
from muster.readcache.request import Answer, Forward, Request
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.freshness import Freshness
from muster.readcache.wire import format_for
from muster.readcache.wire.format import WireFormat
from tests.support.waiting import until

READ_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of either side. `target` is path and query as they are sent."""

    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"

    @property
    def is_watch(self) -> bool:
        """Returns whether the answer is a stream of events, if it is a success."""
        return is_true(dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True)).get("watch"))

    def continued(self, token: str, *, version: str = "") -> Asked:
        """Return the request for the next page, for odd clients with a resourceVersion."""
        path, _, query = self.target.partition("?")
        without = ("continue", "resourceVersion", "resourceVersionMatch")
        kept = [(key, value) for key, value in parse_qsl(query, keep_blank_values=True) if key not in without]
        kept += [("continue", token), *([("resourceVersion", version)] if version else [])]
        return Asked(f"{path}?{urlencode(kept)}", self.headers)


@dataclass(frozen=True, slots=True)
class Got:
    """An answer. A watch's body is the whole stream until its end."""

    status: int
    content_type: str
    retry_after: str
    body: bytes


class ApiServer:
    """A real API server, as an administrator."""

    def __init__(self, config: ClusterConfig, connections: int = 64) -> None:
        self._server = config.server
        connector = aiohttp.TCPConnector(ssl=config.ssl_context() or True, limit=connections)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent")
        )
        self._config = config

    async def ask(self, asked: Asked) -> Got:
        """Send a request and read the answer to its end."""
        headers = {"Accept-Encoding": "identity", **asked.headers}
        url = URL(self._server + asked.target, encoded=True)
        async with asyncio.timeout(READ_S), self._session.request(asked.method, url, headers=headers) as answer:
            body = await answer.read()
        return Got(answer.status, answer.headers.get("Content-Type", ""), answer.headers.get("Retry-After", ""), body)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class Followed:
    """A kind in one media type, with the read cache's own follower and proofs of freshness."""

    def __init__(self, kind: CachedKind, media: MediaType, config: ClusterConfig) -> None:
        self.kind = kind
        self.format: WireFormat = format_for(kind, media)
        self.store = KindStore(self.format, indexes_of(kind), loop=asyncio.get_running_loop())
        self._transport = HttpTransport(config, user_agent="readcache", connections=8)
        self._follower = Follower(self.store, self._transport, kind, self.format)
        self._freshness = Freshness(self._follower)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follower.run())
        await until(f"there is a state of {self.kind.resource.plural}", lambda: self.store.synced, READ_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._freshness.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._transport.close()

    async def confirm(self, timeout_s: float) -> int:
        """Prove that the store is fresh."""
        return await self._freshness.confirm(timeout_s)

    def age_s(self) -> float:
        """Upstream is always there."""
        return 0.0


class ReadCache:
    """The read cache in this process: parsing, reads, hub, wire formats and followers; no sockets and no access.

    Attributes:
        sources: what is followed.
    """

    def __init__(self, config: ClusterConfig, kinds: Sequence[CachedKind], seed: int) -> None:
        self._kinds = {kind_key(kind): kind for kind in kinds}
        self.sources = {
            (kind_key(kind), media): Followed(kind, media, config) for kind in kinds for media in kind.media_types
        }
        self._bookmarks = BookmarkTimer(asyncio.get_running_loop(), random.Random(seed))
        self.reads = Reads(self, self._bookmarks, random.Random(seed + 1), Limits(confirm_s=10.0))
        self._stack = AsyncExitStack()

    def get(self, kind: CachedKind, media: MediaType) -> Followed | None:
        """Return the source of a kind."""
        return self.sources.get((kind_key(kind), media))

    async def __aenter__(self) -> Self:
        for source in self.sources.values():
            await self._stack.enter_async_context(source)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._bookmarks.close()
        await self._stack.aclose()

    async def ask(self, asked: Asked) -> Got | Forward:
        """Answer a request. A watch runs until its timeout."""
        request = request_of(asked)
        target = parse_target(request, self._kinds)
        if target is None:
            return Forward("not for the cache")
        answer = await self.reads.answer(target, request)
        if isinstance(answer, Forward):
            return answer
        if isinstance(answer, Answer):
            retry_after = dict(answer.headers).get("Retry-After", "")
            return Got(answer.status, answer.content_type, retry_after, b"".join(answer.body))
        pieces = list(answer.initial())
        subscription = answer.start(pieces.extend)
        await asyncio.sleep(answer.deadline_s)
        subscription.close()
        return Got(200, answer.content_type, "", b"".join(pieces))


def request_of(asked: Asked) -> Request:
    """The request as the server reads it."""
    path, _, query = asked.target.partition("?")
    values: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        values.setdefault(key, value)
    headers = tuple((name.lower(), value) for name, value in asked.headers.items())
    return Request(asked.method, asked.target, unquote(path), values, headers)
