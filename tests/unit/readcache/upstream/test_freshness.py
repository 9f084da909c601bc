"""Proofs that a store is fresh, against a model of the API server in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from muster.readcache.freshness import NotFresh
from muster.readcache.upstream.freshness import FreshSettings
from tests.unit.readcache.upstream.modelapi import ModelApi
from tests.unit.readcache.upstream.modelworld import World, play
from tests.unit.readcache.upstream.scripted import objects

LARGE = FreshSettings(small_bytes=0)
SMALL = FreshSettings()
BOTH = pytest.mark.parametrize("settings", [pytest.param(LARGE, id="large"), pytest.param(SMALL, id="small")])


@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_writes_before_a_proof_began_are_in_the_store_after_it(settings: FreshSettings, seed: int) -> None:
    proven = 0

    async def ask(world: World, timeout_s: float) -> None:
        nonlocal proven
        api, before = world.api, dict(world.api.objects)
        since = api.version
        try:
            await world.freshness.confirm(timeout_s)
        except NotFresh:
            return
        proven += 1
        have = objects(world.store)
        for name, version in before.items():
            newer = any(at > since and changed == name for at, _, changed in api.events)
            assert newer or have.get(name) == version
        deleted = {name for _, type_, name in api.events if type_ == "DELETED"} - before.keys()
        for name in deleted & have.keys():
            assert have[name] > since

    async def story(world: World) -> None:
        rng, asking = random.Random(seed), list[asyncio.Task[None]]()
        for _ in range(300):
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.2, 3)))
            step = rng.random()
            if step < 0.35:
                world.api.write(rng.choice("abcdefgh"))
            elif step < 0.45:
                world.api.delete(rng.choice("abcdefgh"))
            elif step < 0.7:
                world.api.write_elsewhere()
            elif step < 0.72:
                world.api.break_watches()
            elif step < 0.73:
                world.api.compacted = world.api.version
                world.api.break_watches()
            else:
                asking.append(asyncio.create_task(ask(world, rng.choice((0.3, 3.0, 10.0)))))
        await asyncio.gather(*asking)
        assert proven > 30
        assert world.counters.breaks["out of order"] == 0

    play(settings, story, seed)


def test_a_quiet_large_kind_is_proven_by_a_short_watch_within_two_seconds() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(30)
        written = world.api.write_elsewhere()
        asked = asyncio.get_running_loop().time()
        assert await world.freshness.confirm(5) >= written
        assert asyncio.get_running_loop().time() - asked < 2.5
        assert world.counters.proofs == {"probe": 1}
        assert world.api.lists == 1

    play(LARGE, story)


def test_a_quiet_small_kind_is_proven_by_its_state_without_a_bookmark_or_gap_in_the_log() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(30)
        world.api.write_elsewhere()
        asked = asyncio.get_running_loop().time()
        await world.freshness.confirm(5)
        assert asyncio.get_running_loop().time() - asked < 0.2
        assert world.counters.proofs == {"state": 1}
        assert world.counters.lists == 1
        assert world.counters.probes == 0

    play(SMALL, story)


def test_a_proof_that_nothing_was_written_anywhere_needs_no_watch() -> None:
    async def story(world: World) -> None:
        await world.freshness.confirm(5)
        assert world.counters.proofs == {"known": 1}
        assert world.api.watches == 0

    play(LARGE, story)


def test_an_event_proves_a_busy_kind() -> None:
    async def story(world: World) -> None:
        world.api.lag_s = 0.1
        writing = asyncio.create_task(_write_on(world.api))
        for _ in range(5):
            await world.freshness.confirm(5)
        writing.cancel()
        assert world.counters.proofs["event"] + world.counters.proofs["known"] == 5
        assert world.api.watches == 0

    play(LARGE, story)


async def _write_on(api: ModelApi) -> None:
    while True:
        api.write("a")
        await asyncio.sleep(0.2)


@BOTH
def test_many_callers_share_proofs(settings: FreshSettings) -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(30)
        world.api.write_elsewhere()
        before = world.api.probes + world.api.lists + world.api.watches
        await asyncio.gather(*(world.freshness.confirm(8) for _ in range(1000)))
        assert world.api.probes + world.api.lists + world.api.watches - before <= 3
        assert sum(world.counters.proofs.values()) == 1000

    play(settings, story)


@BOTH
def test_without_the_api_server_there_is_no_proof_and_then_one_again(settings: FreshSettings) -> None:
    async def story(world: World) -> None:
        world.api.away = True
        with pytest.raises(NotFresh, match="refused"):
            await world.freshness.confirm(5)
        world.api.break_watches()
        await asyncio.sleep(60)
        world.api.write("d")
        with pytest.raises(NotFresh):
            await world.freshness.confirm(5)
        world.api.away = False
        await world.freshness.confirm(15)
        assert "d" in objects(world.store)
        assert world.counters.not_fresh == 2

    play(settings, story)


@BOTH
def test_kine_577_the_deadline_is_kept_if_the_watch_is_late(settings: FreshSettings) -> None:
    """k3s-io/kine#577: the API server's watches stand still. Lists without a version then fail, and are not stale."""

    async def story(world: World) -> None:
        world.api.lag_s = 1e6
        world.api.write("a")
        asked = asyncio.get_running_loop().time()
        with pytest.raises(NotFresh, match="within 3 s"):
            await world.freshness.confirm(3)
        assert asyncio.get_running_loop().time() - asked <= 3.1

    play(settings, story)


@BOTH
def test_a_version_that_went_back_proves_nothing_and_the_follower_loads_again(settings: FreshSettings) -> None:
    async def story(world: World) -> None:
        world.api.write("a")
        await world.freshness.confirm(5)
        world.api.version -= 3  # etcd was restored, and the watch stays open
        world.api.objects = {"z": 50}
        world.api.events.clear()
        with pytest.raises(NotFresh, match="went back"):
            await world.freshness.confirm(5)
        await asyncio.sleep(5)
        assert objects(world.store) == {"z": 50}
        await world.freshness.confirm(5)
        assert world.counters.resets == 1

    play(settings, story)


def test_a_server_without_watch_list_proves_small_kinds_by_other_means() -> None:
    async def story(world: World) -> None:
        world.follower.miss_watch_list(Exception("none here"))
        await asyncio.sleep(30)
        world.api.write_elsewhere()
        await world.freshness.confirm(5)
        assert world.counters.proofs == {"probe": 1}

    play(SMALL, story)
