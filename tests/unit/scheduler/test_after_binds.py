"""Background writes yield to binds, in virtual time: the status of a bound gang, and Events about the past."""

from __future__ import annotations

import asyncio

import pytest

from muster.scheduler.actions.bound_events import BINDING_WAIT_S
from muster.scheduler.controller import MARK_BOUND_WAIT_S
from tests.support.virtualreplicas import PLACEMENTS, PODS, World, Write

READY_S = 20.0
"""The first leader has its lease, and nodes are ready."""


def is_bind(write: Write) -> bool:
    return write.what.endswith("/binding")


def is_mark(write: Write) -> bool:
    """Whether it is the word that a gang is bound."""
    return write.what.endswith("/status") and "/placements/" in write.what


def is_word(write: Write) -> bool:
    """Whether it is a background write: that status, or an Event about what was bound."""
    return is_mark(write) or "/events" in write.what


@pytest.mark.slow
def test_no_word_goes_between_the_binds_of_a_burst_of_small_gangs_and_all_go_after_it() -> None:
    gangs, size = 9, 2
    world = World(gangs * size)

    async def story() -> None:
        await asyncio.sleep(READY_S)
        for number in range(gangs):  # each is bound before the next one comes
            world.add_gang(f"gang-{number}", size)
            await asyncio.sleep(0.5)
        await asyncio.sleep(10.0)
        binds = [write.at for write in world.writes if is_bind(write)]
        words = [write.at for write in world.writes if is_word(write)]
        assert len(binds) == gangs * size
        assert binds[-1] - binds[0] < min(MARK_BOUND_WAIT_S, BINDING_WAIT_S)
        assert min(words) > max(binds)
        phases = [each["status"]["phase"] for each in world.call("GET", PLACEMENTS)["items"]]
        assert phases == ["Bound"] * gangs
        events = [write for write in world.writes if "/events" in write.what]
        assert len(events) == gangs * (size + 1)

    world.run(story)


@pytest.mark.slow
def test_binds_without_end_never_keep_the_word_back_for_ever() -> None:
    gangs = 60
    world = World(gangs)

    async def story() -> None:
        await asyncio.sleep(READY_S)
        for number in range(gangs):
            world.add_gang(f"gang-{number}", 1)
            await asyncio.sleep(0.5)
        binds = [write.at for write in world.writes if is_bind(write)]
        bound = {write.what.split("/")[-2]: write.at for write in world.writes if is_mark(write)}
        assert bound["gang-0"] < max(binds), "binds went on meanwhile"
        assert bound["gang-0"] - binds[0] < MARK_BOUND_WAIT_S + 1.0

    world.run(story)


@pytest.mark.slow
def test_binds_of_others_never_delay_what_a_bound_gang_needs() -> None:
    gangs = 24
    world = World(gangs + 3)

    async def story() -> None:
        await asyncio.sleep(READY_S)
        world.add_gang("whole", 2)
        for number in range(gangs):
            await asyncio.sleep(0.5)
            world.add_gang(f"gang-{number}", 1)
            if number == 3:
                world.call("DELETE", f"{PODS}/whole-1-0")
            if number == 7:
                world.add_member("whole", 1, 2)
        again = [write.at for write in world.writes if is_bind(write) and "whole-1-0" in write.what]
        marked = [write.at for write in world.writes if is_mark(write) and "/whole/" in write.what]
        assert len(again) == 2
        assert again[1] - again[0] < 8.0
        assert len(marked) == 1, "it was whole before it lost a pod"

    world.run(story)
