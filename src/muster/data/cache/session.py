"""One reader: its job, its store with its own credentials, and its leases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.data.cache.blocks import Block
from muster.data.cache.disk import DiskBypassed
from muster.data.cache.downloads import NoPeer, Request
from muster.data.cache.fetch import Got
from muster.data.cache.memory import MemoryFile
from muster.data.cache.opening import Place, open_place
from muster.data.cache.requests import NotPermitted
from muster.data.cache.trust import Who
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.store import ObjectInfo, Store
from muster.sdk.data.wire import Message

if TYPE_CHECKING:
    from muster.data.cache.identity import Member
    from muster.data.cache.node import Node

STORE_S: Final = 30.0
"""Limit of a short request to the store."""


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
        self.node = node
        self.control = control
        self.who = Who(f"uid:{uid}", False, "")
        self.member: Member | None = None
        self.listing: Iterator[ObjectInfo] = iter(())
        self.listed: tuple[str, str] = ("", "")
        self.objects: list[Message] = []
        self._holdings = node.disk.leases.holder()
        self._memory: dict[int, MemoryFile] = {}
        self._place: Place | None = None
        self._credentials: dict[str, str] = {}
        self._store: Store | None = None
        self._store_key = ""
        self._ended = False
        self._entered = False

    @property
    def place(self) -> Place:
        """The reader's store. Raises NotPermitted before `hello`."""
        if self._place is None:
            raise NotPermitted("the first request must be 'hello'")
        return self._place

    @property
    def greeted(self) -> bool:
        """True after `hello`."""
        return self._place is not None

    def begin(self, place: Place, credentials: dict[str, str], member: Member | None) -> None:
        """Begin with the store and the credentials of `hello`, and the job of its ticket."""
        self._place = place
        self.member = member
        name = self.who.job
        if member is not None:
            name = member.name
            self.who = Who(member.uid, True, "")
        self.node.enter(self, name)
        self._entered = True
        self.use(credentials)

    def join(self, member: Member) -> None:
        """Begin without a store: for checkpoint shards, and to make this node a member of a gang."""
        self.member, self.who = member, Who(member.uid, True, "")
        self.node.enter(self, member.name)
        self._entered = True

    def use(self, credentials: dict[str, str]) -> None:
        """Use these credentials from now on."""
        self._drop_store()
        self._credentials = credentials
        self.who = self.who._replace(fingerprint=self.node.trust.fingerprint(self.place.identity.text, credentials))

    async def close(self) -> None:
        """End the leases and drop the credentials."""
        self._holdings.end_all()
        for file in self._memory.values():
            file.release()
        self._memory.clear()
        if self._entered:
            self.node.leave(self)
        if self.member is not None:
            self.member.end()
        self._ended = True
        self._drop_store()
        self._credentials = {}

    def lease(self, got: Got) -> int:
        """Keep the block until the reader has ended the lease, and return its number."""
        lease = self._holdings.take(got.footer.name)
        if got.memory is not None:
            self._memory[lease] = got.memory
        return lease

    def end_lease(self, lease: int) -> None:
        """End a lease; an unknown number is ignored."""
        self._holdings.end(lease)
        file = self._memory.pop(lease, None)
        if file is not None:
            file.release()

    async def find(self, block: Block, deadline_s: float, peers: bool = True) -> Got:
        """Return a block that this reader may have. Raises StoreError, Busy, DiskBypassed."""
        try:
            async with asyncio.timeout(deadline_s):
                got = await self._find(block, peers)
        except TimeoutError:
            raise Unavailable(f"{block.key}: no bytes within {deadline_s:.0f} s") from None
        if got.source == "disk":
            self.node.fetcher.hits += 1
            self.node.accounts.charge(self.who.job, "disk", got.footer.length)
        else:
            self.node.fetcher.misses += 1
        return got

    async def head(self, full_key: str) -> ObjectInfo:
        """Ask the store for an object, with this reader's credentials. Raises StoreError."""
        store = await self.opened()
        return await self.node.in_thread(self.who.job, lambda: store.head(full_key, STORE_S), STORE_S + 5)

    async def opened(self) -> Store:
        """The reader's bucket, which readers of the job with the same credentials share. Raises StoreError."""
        if self._store is not None:
            return self._store
        node, job, key = self.node, self.who.job, self._key
        place, credentials = self.place, self._credentials
        proxy = node.proxy_url(job, place.identity)
        store = await node.stores.enter(
            key, lambda: node.in_thread(job, lambda: open_place(place, credentials, STORE_S, proxy), STORE_S)
        )
        if self._store_key or self._ended or key != self._key:
            node.stores.leave(key)  # another request was faster, the reader is gone, or it has new credentials
        else:
            self._store, self._store_key = store, key
        return store

    @property
    def _key(self) -> str:
        return f"{self.who.job} {self.who.fingerprint}"

    def _drop_store(self) -> None:
        key, self._store, self._store_key = self._store_key, None, ""
        if key:
            self.node.stores.leave(key)

    async def _find(self, block: Block, peers: bool) -> Got:
        fetcher, job = self.node.fetcher, self.who.job
        got = await self._held(block)
        if got is not None:
            return got
        store = await self.opened()
        gang = self.member.gang if self.member is not None else None
        if gang is not None and peers and not fetcher.in_flight(block):
            scoped = block.scoped(job)
            got = await self._from_disk(scoped)
            if got is not None:
                return got
            try:
                return await fetcher.download(Request(scoped, store, job, gang=gang))
            except NoPeer:
                pass
        checked = False
        while True:
            # If the disk has no copy, nothing else runs between this look and the begin of the download. So no reader
            # begins a second download, and none joins the download of another reader without a check of its rights.
            got = await self._held(block)
            if got is not None:
                return got
            if checked or not fetcher.in_flight(block):
                break
            await self._check(block, "")
            checked = True
        proxied = bool(self.node.proxy_url(job, self.place.identity))
        got = await fetcher.download(Request(block, store, job, proxied))
        self.node.trust.granted(self.who, block.object)
        return got

    async def _held(self, block: Block) -> Got | None:
        """Return the copy on the disk, or None without one. Raises StoreError if this reader may not have it."""
        got = await self._from_disk(block)
        if got is not None:
            try:
                await self._check(block, got.footer.owner)
            except BaseException:
                drop(got)
                raise
        return got

    async def _check(self, block: Block, owner: str) -> None:
        await self.node.trust.check(self.who, block.object, owner, lambda: self.head(block.key))

    async def _from_disk(self, block: Block) -> Got | None:
        try:
            return await self.node.fetcher.from_disk(block)
        except DiskBypassed:
            return None


def drop(got: Got) -> None:
    """Give a block back that is not sent."""
    os.close(got.descriptor)
    if got.memory is not None:
        got.memory.release()
