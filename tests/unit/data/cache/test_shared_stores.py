"""Readers with the same credentials share a store, which is closed with the last of them."""

from __future__ import annotations

import asyncio

import pytest

from muster.data.cache.stores import SharedStores
from muster.sdk.data.errors import WrongStore
from muster.sdk.data.store import Store
from tests.support.waiting import until


class Opener:
    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.count = 0
        self.error: Exception | None = None

    async def __call__(self) -> Store:
        self.count += 1
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return Store()


async def test_store_is_opened_once_and_closed_by_its_last_reader() -> None:
    closed: list[Store] = []
    stores, opener = SharedStores(closed.append), Opener()
    entering = [asyncio.create_task(stores.enter("key", opener)) for _ in range(3)]
    await asyncio.sleep(0)
    entering[0].cancel()  # a reader that leaves while the store opens does not stop the others
    opener.release.set()
    store, same = await entering[1], await entering[2]
    assert (store, opener.count) == (same, 1)
    assert await stores.enter("other", opener) is not store
    stores.leave("key")
    await asyncio.sleep(0)
    assert closed == []
    stores.leave("key")
    await until("the store is closed", lambda: closed == [store])
    assert len(stores) == 1
    assert await stores.enter("key", opener) is not store


async def test_store_that_cannot_be_opened_is_tried_again() -> None:
    stores, opener = SharedStores(lambda store: None), Opener()
    opener.error = WrongStore("no such bucket")
    opener.release.set()
    for task in [asyncio.create_task(stores.enter("key", opener)) for _ in range(2)]:
        with pytest.raises(WrongStore):
            await task
    opener.error = None
    await stores.enter("key", opener)
    assert opener.count == 2


async def test_store_whose_readers_all_left_while_it_opened_is_closed() -> None:
    closed: list[Store] = []
    stores, opener = SharedStores(closed.append), Opener()
    entering = asyncio.create_task(stores.enter("key", opener))
    await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    opener.release.set()
    await until("the store is closed", lambda: len(closed) == 1)
    assert len(stores) == 0
