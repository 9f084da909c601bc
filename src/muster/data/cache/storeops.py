"""Operations on objects for images without obstore, with the reader's own credentials: head, list, put, delete."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from muster.data.cache import requests
from muster.data.cache.channel import Channel, Incoming
from muster.data.cache.disk import BLOCKS
from muster.data.cache.downloads import Busy
from muster.data.cache.files import write_all
from muster.data.cache.memory import MemoryFull
from muster.data.cache.operations import ok
from muster.data.cache.session import STORE_S, Reply, Session
from muster.sdk.data.store import ObjectInfo, Store
from muster.sdk.data.wire import Message

_PAGE: Final = 250
"""Objects of a page: with the longest keys they fit into a frame."""
_LIST_S: Final = 120.0
_BODY_PART_S: Final = 60.0
_IN_MEMORY_BYTES: Final = 32 << 20
_LARGEST_PUT: Final = 5 << 40
_PUT_S: Final = 60.0
_SLOWEST_BYTES_PER_S: Final = 256 << 10


async def head(session: Session, request: Message) -> Reply:
    """Report an object's size and version."""
    return _described(await session.head(session.place.full(requests.key(request))))


async def list_objects(session: Session, request: Message) -> Reply:
    """Report a page of objects. The next page continues the same listing of the store."""
    prefix, after = requests.text(request, "prefix", ""), requests.text(request, "after", "")
    store, place = await session.opened(), session.place
    if not after or session.listed != (prefix, after):
        session.listing = iter(store.list(f"{place.prefix}/{prefix}" if place.prefix else prefix))

    def page() -> list[ObjectInfo]:
        relative = (info._replace(key=place.relative(info.key)) for info in session.listing)
        return list(itertools.islice((info for info in relative if info.key > after), _PAGE))

    found = await session.node.in_thread(session.who.job, page, _LIST_S)
    session.listed = (prefix, found[-1].key if found else "")
    objects = [
        {"key": info.key, "size": info.size_bytes, "etag": info.etag, "modified": info.modified} for info in found
    ]
    return ok(objects=objects, more=len(found) == _PAGE)


async def delete(session: Session, request: Message) -> Reply:
    """Delete an object."""
    store, full = await session.opened(), session.place.full(requests.key(request))
    await session.node.in_thread(session.who.job, lambda: store.delete(full), STORE_S + 5)
    return ok()


async def put(session: Session, incoming: Incoming, channel: Channel) -> Reply:
    """Receive an object's bytes into a local file, then write it to the store."""
    request = incoming.message
    full, size = session.place.full(requests.key(request)), requests.number(request, "size", _LARGEST_PUT)
    create_only = request.get("create_only") is True
    target = _Target(full, size, create_only, await session.opened())
    if size <= _IN_MEMORY_BYTES:
        return await _put_from_memory(session, incoming, channel, target)
    return await _put_from_disk(session, incoming, channel, target)


class _Target(NamedTuple):
    key: str
    size: int
    create_only: bool
    store: Store


async def _put_from_memory(session: Session, incoming: Incoming, channel: Channel, target: _Target) -> Reply:
    try:
        file = session.node.memory.create(target.size)
    except MemoryFull as error:
        raise Busy(str(error)) from None
    try:
        return await _receive_and_put(session, incoming, channel, file.descriptor, target)
    finally:
        file.release()


async def _put_from_disk(session: Session, incoming: Incoming, channel: Channel, target: _Target) -> Reply:
    disk = session.node.disk
    await disk.reserve(BLOCKS, target.size)
    try:
        partial = await disk.begin("put")
        try:
            return await _receive_and_put(session, incoming, channel, partial.descriptor, target)
        finally:
            disk.discard(partial)
    finally:
        disk.release(target.size)


async def _receive_and_put(
    session: Session, incoming: Incoming, channel: Channel, descriptor: int, target: _Target
) -> Reply:
    key, size, create_only, store = target
    node = session.node
    spool = _Spool(descriptor)

    async def write(part: memoryview) -> None:
        await node.disk.call(lambda: spool.write(part), len(part))

    def upload() -> ObjectInfo:
        with spool.reading() as source:
            if size <= _IN_MEMORY_BYTES:
                return store.put(key, os.pread(source, size, 0), create_only)
            return store.put(key, f"/proc/self/fd/{source}", create_only)

    try:
        await channel.send({"ok": True, "ready": True})
        await channel.copy(size, write, _BODY_PART_S)
        incoming.received.set()
        return _described(await node.in_thread(session.who.job, upload, _PUT_S + size / _SLOWEST_BYTES_PER_S))
    finally:
        node.disk.defer(spool.close)


class _Spool:
    """A duplicate of a descriptor. It is closed only when no thread uses it, also one that was given up."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._lock = threading.Lock()
        self._closed = False

    def write(self, part: memoryview) -> None:
        """Append bytes. Raises OSError."""
        with self._lock:
            if not self._closed:
                write_all(self._descriptor, part)

    @contextlib.contextmanager
    def reading(self) -> Iterator[int]:
        """Yield a descriptor that stays open. Raises OSError."""
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, "the request has ended")
            descriptor = os.dup(self._descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the duplicate, when no write runs."""
        with self._lock:
            self._closed = True
            os.close(self._descriptor)


def _described(info: ObjectInfo) -> Reply:
    return ok(size=info.size_bytes, etag=info.etag, version=info.version, modified=info.modified)
