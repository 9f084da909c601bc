"""One reader: its job, its store with its own credentials, its leases, and its requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.data.cache import requests
from muster.data.cache.blocks import Block
from muster.data.cache.channel import Channel
from muster.data.cache.disk import DiskBypassed
from muster.data.cache.downloads import Request
from muster.data.cache.fetch import Got
from muster.data.cache.leases import MAX_LEASES
from muster.data.cache.memory import MemoryFile
from muster.data.cache.opening import Place, open_place, place_of
from muster.data.cache.requests import BadRequest, NotPermitted
from muster.data.cache.trust import Who
from muster.sdk.data.credentials import NAMES
from muster.sdk.data.store import ObjectInfo, Store
from muster.sdk.data.wire import VERSION, Message, block_range

if TYPE_CHECKING:
    from muster.data.cache.node import Node

_PAGE: Final = 1000
_HEAD_S: Final = 20.0
_LONGEST_S: Final = 3600.0


class Reply(NamedTuple):
    """An answer, and the descriptor beside it, which is closed after it was sent; -1 without."""

    message: Message
    descriptor: int = -1


class Session:
    """The state of one connection.

    Args:
        node: what all sessions share.
        uid: user ID of the client.
        control: the connection is on the control socket.
    """

    def __init__(self, node: Node, uid: int, control: bool) -> None:
        self._node = node
        self._control = control
        self._holdings = node.disk.leases.holder()
        self._memory: dict[int, MemoryFile] = {}
        self._place: Place | None = None
        self._credentials: dict[str, str] = {}
        self._store: Store | None = None
        self.who = Who(f"uid:{uid}", False, "")

    async def close(self) -> None:
        """End the leases and drop the credentials."""
        self._holdings.end_all()
        for file in self._memory.values():
            file.release()
        self._memory.clear()
        self._credentials = {}
        if self._place is not None:
            self._node.accounts.leave(self.who.job)
        if self._store is not None:
            store, self._store = self._store, None
            await self._node.in_thread(store.close, _HEAD_S)

    async def handle(self, request: Message, channel: Channel) -> Reply | None:
        """Answer a request; None: it has no answer. Raises StoreError, Busy, DiskBypassed, BadRequest, NotPermitted."""
        op = requests.text(request, "op")
        handler = _OPERATIONS.get(op)
        if handler is None:
            raise BadRequest(f"there is no operation {op[:40]!r}")
        return await handler(self, request)

    async def _hello(self, request: Message) -> Reply:
        if self._place is not None:
            raise BadRequest("'hello' may come only once")
        if requests.number(request, "version") != VERSION:
            raise BadRequest(f"this node cache speaks version {VERSION}; use the muster.sdk of the same release")
        credentials = _known(requests.texts(request, "credentials"))
        self._place = place_of(requests.texts(request, "store"), credentials, self._node.schemes)
        self._node.accounts.enter(self.who.job)
        self._take_credentials(credentials)
        disk = self._node.disk.health
        return _ok(
            version=VERSION,
            node=self._node.name,
            state="ok" if disk.usable else "bypass",
            job=self.who.job,
        )

    async def _refresh(self, request: Message) -> Reply:
        self._require_place()
        self._take_credentials(_known(requests.texts(request, "credentials")))
        return _ok()

    def _take_credentials(self, credentials: dict[str, str]) -> None:
        place = self._require_place()
        self._credentials = credentials
        self._store = None
        self.who = self.who._replace(fingerprint=self._node.trust.fingerprint(place.identity.text, credentials))

    async def _block(self, request: Message) -> Reply:
        got, source = await self._get(request)
        lease = self._holdings.take(got.footer.name)
        if got.memory is not None:
            self._memory[lease] = got.memory
        return Reply(
            {"ok": True, "length": got.footer.length, "sha256": got.footer.sha256, "source": source, "lease": lease},
            got.descriptor,
        )

    async def _warm(self, request: Message) -> Reply:
        got, source = await self._get(request)
        _drop(got)
        return _ok(length=got.footer.length, source=source)

    async def _get(self, request: Message) -> tuple[Got, str]:
        place = self._require_place()
        block = _block_of(request, place)
        deadline_s = min(_LONGEST_S, float(requests.number(request, "deadline_s", default=int(_LONGEST_S))))
        try:
            async with asyncio.timeout(deadline_s):
                return await self._find(block)
        except TimeoutError:
            raise requests.BadRequest("the deadline has passed") from None

    async def _find(self, block: Block) -> tuple[Got, str]:
        node = self._node
        got = await self._from_disk(block)
        if got is not None:
            try:
                await node.trust.check(self.who, block.object, got.footer.owner, lambda: self._head(block.key))
            except BaseException:
                _drop(got)
                raise
            node.fetcher.hits += 1
        else:
            if node.fetcher.in_flight(block):
                await node.trust.check(self.who, block.object, "", lambda: self._head(block.key))
            got = await node.fetcher.download(Request(block, await self._opened(), self.who.job))
            node.trust.granted(self.who, block.object)
        if got.source == "disk":
            node.accounts.charge(self.who.job, "disk", got.footer.length)
        return got, got.source

    async def _from_disk(self, block: Block) -> Got | None:
        try:
            return await self._node.fetcher.from_disk(block)
        except DiskBypassed:
            return None

    async def _done(self, request: Message) -> None:
        for lease in requests.numbers(request, "leases", MAX_LEASES):
            self._holdings.end(lease)
            file = self._memory.pop(lease, None)
            if file is not None:
                file.release()

    async def _head_of(self, request: Message) -> Reply:
        place = self._require_place()
        found = await self._head(place.full(requests.key(request)))
        return _ok(size=found.size_bytes, etag=found.etag, version=found.version, modified=found.modified)

    async def _head(self, full_key: str) -> ObjectInfo:
        store = await self._opened()
        return await self._node.in_thread(lambda: store.head(full_key, _HEAD_S), _HEAD_S + 5)

    async def _opened(self) -> Store:
        if self._store is None:
            place, credentials = self._require_place(), self._credentials
            self._store = await self._node.in_thread(lambda: open_place(place, credentials, _HEAD_S), _HEAD_S)
        return self._store

    async def _status(self, request: Message) -> Reply:
        return Reply({"ok": True, **self._node.status(None if self._control else self.who.job)})

    def _require_place(self) -> Place:
        if self._place is None:
            raise NotPermitted("the first request is 'hello'")
        return self._place


def _ok(**fields: object) -> Reply:
    return Reply({"ok": True, **fields})


def _known(credentials: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in credentials.items() if name in NAMES}


def _drop(got: Got) -> None:
    os.close(got.descriptor)
    if got.memory is not None:
        got.memory.release()


def _block_of(request: Message, place: Place) -> Block:
    size, index = requests.number(request, "size"), requests.number(request, "index")
    try:
        block_range(size, index)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    etag = requests.text(request, "etag")
    if not etag:
        raise BadRequest("'etag' must not be empty: without it the cache cannot tell versions apart")
    return Block(place.identity.text, place.full(requests.key(request)), etag, size, index)


_OPERATIONS: Final[dict[str, Callable[[Session, Message], Awaitable[Reply | None]]]] = {
    "hello": Session._hello,
    "credentials": Session._refresh,
    "block": Session._block,
    "warm": Session._warm,
    "done": Session._done,
    "head": Session._head_of,
    "status": Session._status,
}

__all__ = ["Reply", "Session"]
