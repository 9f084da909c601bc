"""Operations on objects for images without obstore, with the reader's own credentials: head, list, put, delete."""

from __future__ import annotations

import itertools
import os
from typing import Final

from muster.data.cache import requests
from muster.data.cache.channel import Channel
from muster.data.cache.disk import BLOCKS
from muster.data.cache.downloads import Busy
from muster.data.cache.files import write_all
from muster.data.cache.memory import MemoryFull
from muster.data.cache.operations import ok
from muster.data.cache.session import STORE_S, Reply, Session
from muster.sdk.data.store import ObjectInfo
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

    found = await session.node.in_thread(page, _LIST_S)
    session.listed = (prefix, found[-1].key if found else "")
    objects = [
        {"key": info.key, "size": info.size_bytes, "etag": info.etag, "modified": info.modified} for info in found
    ]
    return ok(objects=objects, more=len(found) == _PAGE)


async def delete(session: Session, request: Message) -> Reply:
    """Delete an object."""
    store, full = await session.opened(), session.place.full(requests.key(request))
    await session.node.in_thread(lambda: store.delete(full), STORE_S + 5)
    return ok()


async def put(session: Session, request: Message, channel: Channel) -> Reply:
    """Receive an object's bytes into a local file, then write it to the store."""
    try:
        full, size = session.place.full(requests.key(request)), requests.number(request, "size", _LARGEST_PUT)
        create_only = request.get("create_only") is True
        if size <= _IN_MEMORY_BYTES:
            return await _put_from_memory(session, channel, full, size, create_only)
        return await _put_from_disk(session, channel, full, size, create_only)
    finally:
        channel.resume()


async def _put_from_memory(session: Session, channel: Channel, full: str, size: int, create_only: bool) -> Reply:
    try:
        file = session.node.memory.create(size)
    except MemoryFull as error:
        raise Busy(str(error)) from None
    try:
        return await _receive_and_put(session, channel, file.descriptor, full, size, create_only)
    finally:
        file.release()


async def _put_from_disk(session: Session, channel: Channel, full: str, size: int, create_only: bool) -> Reply:
    disk = session.node.disk
    await disk.reserve(BLOCKS, size)
    try:
        partial = await disk.begin("put")
        try:
            return await _receive_and_put(session, channel, partial.descriptor, full, size, create_only)
        finally:
            disk.discard(partial)
    finally:
        disk.release(size)


async def _receive_and_put(
    session: Session, channel: Channel, descriptor: int, full: str, size: int, create_only: bool
) -> Reply:
    node, store = session.node, await session.opened()
    held = os.dup(descriptor)  # a thread that is given up still reads it

    async def write(part: memoryview) -> None:
        await node.disk.call(lambda: write_all(held, part), len(part))

    def upload() -> ObjectInfo:
        try:
            os.lseek(held, 0, os.SEEK_SET)
            if size <= _IN_MEMORY_BYTES:
                return store.put(full, os.pread(held, size, 0), create_only)
            return store.put(full, f"/proc/self/fd/{held}", create_only)
        finally:
            os.close(held)

    try:
        await channel.send({"ok": True, "ready": True})
        await channel.copy(size, write, _BODY_PART_S)
    except BaseException:
        os.close(held)
        raise
    channel.resume()
    info = await node.in_thread(upload, _PUT_S + size / _SLOWEST_BYTES_PER_S)
    return _described(info)


def _described(info: ObjectInfo) -> Reply:
    return ok(size=info.size_bytes, etag=info.etag, version=info.version, modified=info.modified)
