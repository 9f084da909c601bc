"""A follower of the embedded API server, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from muster.kube.objects.pod import Pod
from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.freshness import Freshness, FreshSettings
from muster.readcache.upstream.selfcheck import SelfCheck
from muster.readcache.wire import format_for
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from tests.support.apicore import PODS, Cluster, pod

KIND = CachedKind(Pod.RESOURCE)
JSON = format_for(KIND, MediaType.JSON)
Story = Callable[[Cluster, Follower, Freshness], Awaitable[None]]


def play(settings: FreshSettings, story: Story) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        cluster, rng = Cluster(), random.Random(1)
        transport = InProcessTransport(cluster.core, "readcache", Calm(rng), Trace())
        follower = Follower(KindStore(JSON, loop=asyncio.get_running_loop()), transport, KIND, JSON, rng=rng)
        freshness = Freshness(follower, settings)
        running = asyncio.create_task(follower.run())
        await asyncio.sleep(1)
        await story(cluster, follower, freshness)
        assert not running.done()
        await freshness.close()

    try:
        loop.run(main())
    finally:
        loop.wind_up()


def versions(follower: Follower) -> dict[str, str]:
    return {item.name: str(item.version) for item in follower.store.objects.items.values()}


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_its_store_is_equal_and_proven_fresh_and_checks_itself(small_bytes: int) -> None:
    async def story(cluster: Cluster, follower: Follower, freshness: Freshness) -> None:
        rng = random.Random(2)
        for number in range(40):
            cluster.ok("POST", PODS, pod(f"p{number}"))
            if rng.random() < 0.3:
                cluster.ok("DELETE", f"{PODS}/p{number}?gracePeriodSeconds=0")
            await asyncio.sleep(rng.random())
            if number % 4 == 0:
                await freshness.confirm(10)
                items = cluster.ok("GET", PODS)["items"]
                assert versions(follower) == {
                    each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items
                }
        cluster.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
        await freshness.confirm(10)
        assert follower.counters.proofs["state" if small_bytes else "probe"] >= 1
        assert await SelfCheck(follower).check() == "equal"
        assert follower.counters.lists == 1
        assert follower.counters.not_fresh == 0

    play(FreshSettings(small_bytes=small_bytes), story)
