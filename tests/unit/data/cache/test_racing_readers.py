"""Readers of the same block whose requests overlap: one download, and each reader's rights are checked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from muster.data.cache import session as sessions
from muster.data.cache.blocks import Block
from muster.data.cache.disk import Disk, Limits
from muster.data.cache.files import Folder
from muster.data.cache.node import Node
from muster.data.cache.opening import Place, place_of
from muster.data.cache.session import Session
from muster.sdk.data.errors import Forbidden
from muster.sdk.data.store import ObjectInfo, Store

DATA = b"data" * 1000
WAIT_S = 30.0


class Bucket(Store):
    """The bucket with the credentials of one reader. Opening it, and reading, wait for events."""

    def __init__(self, allowed: bool = True) -> None:
        self.url = "s3://bucket"
        self.opens, self.reads = threading.Event(), threading.Event()
        self.reading = threading.Event()
        self.downloads = 0
        self._allowed = allowed

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        if not self._allowed:
            raise Forbidden(f"{key}: refused")
        return ObjectInfo(key, len(DATA), "tag")

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        self.downloads += 1
        self.reading.set()
        assert self.reads.wait(WAIT_S)
        return file.write(DATA)

    def close(self) -> None:
        self.opens.set()


class World:
    """A node cache with readers, whose buckets are given by their credentials."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.buckets: dict[str, Bucket] = {}
        self.place = place_of({"url": "s3://bucket"}, {}, frozenset({"s3"}))
        self.block = Block(self.place.identity.text, "key", "tag", len(DATA), 0)

        def open_place(place: Place, credentials: dict[str, str], deadline_s: float, proxy_url: str = "") -> Store:
            bucket = self.buckets[credentials["AWS_ACCESS_KEY_ID"]]
            assert bucket.opens.wait(WAIT_S)
            return bucket

        monkeypatch.setattr(sessions, "open_place", open_place)

    def reader(self, name: str, bucket: Bucket) -> Session:
        self.buckets[name] = bucket
        session = Session(self.node, 1000, False)
        session.begin(self.place, {"AWS_ACCESS_KEY_ID": name}, None)
        return session

    async def read(self, session: Session) -> bytes:
        got = await session.find(self.block, WAIT_S)
        try:
            return os.pread(got.descriptor, len(DATA), 0)
        finally:
            sessions.drop(got)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    disk = Disk(Folder(tmp_path / "cache"), Limits(size_bytes=1 << 30, floor_fraction=0.0))
    await disk.start()
    node = Node("node", "", disk, 1 << 20, frozenset({"s3"}))
    yield World(node, monkeypatch)
    for bucket in (each for session in node.readers("uid:1000") for each in [session._store] if each is not None):
        bucket.close()
    node.close()


async def test_a_reader_that_looked_before_a_download_ended_does_not_download_again(world: World) -> None:
    early, late = Bucket(), Bucket()
    late_reader = asyncio.create_task(world.read(world.reader("late", late)))
    await asyncio.sleep(0)  # it has found nothing on the disk, and opens its store
    early.opens.set()
    early.reads.set()
    assert await world.read(world.reader("early", early)) == DATA
    late.opens.set()
    assert await late_reader == DATA
    assert (early.downloads, late.downloads) == (1, 0)


async def test_a_reader_without_rights_cannot_join_a_download_that_began_while_its_store_opened(world: World) -> None:
    allowed, refused = Bucket(), Bucket(allowed=False)
    without = asyncio.create_task(world.read(world.reader("without", refused)))
    await asyncio.sleep(0)
    allowed.opens.set()
    reading = asyncio.create_task(world.read(world.reader("with", allowed)))
    assert await asyncio.to_thread(allowed.reading.wait, WAIT_S)
    refused.opens.set()
    with pytest.raises(Forbidden):
        await without
    allowed.reads.set()
    assert await reading == DATA
    assert (allowed.downloads, refused.downloads) == (1, 0)
