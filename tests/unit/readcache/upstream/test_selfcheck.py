"""The comparison of a store with the API server, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from muster.readcache.upstream.freshness import FreshSettings
from muster.readcache.upstream.selfcheck import Digest, SelfCheck
from tests.unit.readcache.upstream.modelworld import World, play
from tests.unit.readcache.upstream.scripted import Seen, objects

SETTINGS = FreshSettings()


@pytest.mark.parametrize("seed", range(8))
def test_churn_causes_no_false_alarm(seed: int) -> None:
    async def story(world: World) -> None:
        rng, check = random.Random(seed), SelfCheck(world.follower)
        checking = [asyncio.create_task(check.check())]
        for _ in range(400):
            await asyncio.sleep(rng.choice((0, 0.02, 0.3)))
            (world.api.delete if rng.random() < 0.3 else world.api.write)(rng.choice("abcdefgh"))
            if rng.random() < 0.02:
                world.api.break_watches()
            if rng.random() < 0.1:
                checking.append(asyncio.create_task(check.check()))
        outcomes = set(await asyncio.gather(*checking))
        assert outcomes == {"equal"}
        assert world.counters.lists == 1

    play(SETTINGS, story, seed)


def _forget(world: World) -> None:
    world.store.objects.remove("default/a")


def _keep(world: World) -> None:
    world.api.objects.pop("b")  # without an event
    world.api.write_elsewhere()


def _old(world: World) -> None:
    item = world.store.objects.items["default/c"]
    item.version -= 1


@pytest.mark.parametrize("corrupt", [_forget, _keep, _old])
def test_a_difference_is_found_and_repaired_and_clients_start_over(corrupt: object) -> None:
    async def story(world: World) -> None:
        assert callable(corrupt)
        seen = Seen(world.store)
        corrupt(world)
        check = SelfCheck(world.follower)
        assert await check.check() == "different"
        await asyncio.sleep(5)
        assert objects(world.store) == world.api.objects
        assert await check.check() == "equal"
        assert world.counters.checks == {"different": 1, "equal": 1}
        assert world.counters.breaks == {"self-check": 1}
        assert world.counters.lists == 2
        assert seen.closed == "reset" or seen.events == [("DELETED", "b", world.store.version)]

    play(SETTINGS, story)


def test_a_check_without_the_api_server_changes_nothing() -> None:
    async def story(world: World) -> None:
        world.api.away = True
        assert await SelfCheck(world.follower).check() == "failed"
        assert world.counters.breaks == {}

    play(SETTINGS, story)


def test_a_store_that_does_not_reach_the_version_is_not_compared() -> None:
    async def story(world: World) -> None:
        world.api.lag_s = 1e6
        world.api.write("a")
        assert await SelfCheck(world.follower).check() == "skipped"

    play(SETTINGS, story)


def test_checks_follow_each_other_after_the_period_with_jitter() -> None:
    async def story(world: World) -> None:
        running = asyncio.create_task(SelfCheck(world.follower, period_s=600).run())
        await asyncio.sleep(500)
        assert world.counters.checks == {}
        await asyncio.sleep(7000)
        running.cancel()
        assert world.counters.checks.keys() == {"equal"}
        assert 9 <= world.counters.checks["equal"] <= 13

    play(SETTINGS, story)


def test_a_digest_depends_on_each_part_of_each_object_and_not_on_their_order() -> None:
    def digest(*objects: tuple[str, str, str]) -> Digest:
        made = Digest()
        for each in objects:
            made.add(*each)
        return made

    one, other = ("a", "b", "1"), ("", "ab", "2")
    assert digest(one, other) == digest(other, one)
    different = [digest(one), digest(one, one), digest(one, ("a", "b", "2")), digest(one, ("", "ab", "1")), digest()]
    assert all(each != digest(one, other) for each in different)
