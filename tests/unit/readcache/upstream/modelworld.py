"""A follower of the model of the API server, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from muster.readcache.hub.store import KindStore
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.freshness import Freshness, FreshSettings
from muster.sim.virtual.loop import VirtualLoop
from tests.unit.readcache.upstream.modelapi import ModelApi
from tests.unit.readcache.upstream.scripted import CONFIG_MAPS, JSON


class World:
    """A follower with its proofs, and the API server that it follows."""

    def __init__(self, api: ModelApi, settings: FreshSettings) -> None:
        self.api = api
        self.store = KindStore(JSON, loop=asyncio.get_running_loop())
        self.follower = Follower(self.store, api, CONFIG_MAPS, JSON, rng=api.rng)
        self.freshness = Freshness(self.follower, settings)
        self.counters = self.follower.counters


def play(settings: FreshSettings, story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        api = ModelApi(random.Random(seed))
        for name in "abc":
            api.write(name)
        world = World(api, settings)
        running = asyncio.create_task(world.follower.run())
        await asyncio.sleep(1)
        await story(world)
        assert not running.done()
        await world.freshness.close()

    try:
        loop.run(main())
    finally:
        loop.wind_up()
