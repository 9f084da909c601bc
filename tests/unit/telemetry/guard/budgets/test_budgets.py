"""Issue 17 A2 and A3: waiting for budgets, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from muster.sim.virtual.loop import VirtualLoop
from muster.telemetry.guard.budgets.budgets import Budgets, Grant
from muster.telemetry.guard.budgets.verdict import OverBudget
from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.config import GuardConfig, parse_config
from muster.telemetry.guard.limits import Limits

ALICE, BOB, CAROL = (Caller(name, "token", "default", name) for name in ("alice", "bob", "carol"))


def config(in_all: float = 10, wait_s: float = 10, per_minute: float | None = None) -> GuardConfig:
    minute = f", costPerMinute: {per_minute}" if per_minute else ""
    return parse_config(
        f"upstream: {{url: http://prometheus:9090}}\n"
        f"inAll: {{concurrentCost: {in_all}}}\n"
        f"groups: {{default: {{eachCaller: {{concurrentCost: 100{minute}}}}}}}\n"
        f"queue: {{waitSeconds: {wait_s}}}\n"
    )


def run(test: Coroutine[Any, Any, None]) -> None:
    VirtualLoop.new().run(test)


def granted(found: Grant | OverBudget) -> Grant:
    assert isinstance(found, Grant), found
    return found


def refused(found: Grant | OverBudget) -> OverBudget:
    assert isinstance(found, OverBudget)
    return found


async def hold(budgets: Budgets, caller: Caller, cost: float, seconds: float) -> float:
    with granted(await budgets.take(caller, cost)) as grant:
        await asyncio.sleep(seconds)
    return grant.waited_s


def test_request_waits_until_another_ends() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        assert await asyncio.gather(hold(budgets, ALICE, 10, 4), hold(budgets, BOB, 10, 1)) == [0, 4]
        assert budgets.all.running == 0

    run(scenario())


def test_wait_ends_at_its_deadline() -> None:
    async def scenario() -> None:
        budgets = Budgets(config(wait_s=3))
        grant, loop = granted(await budgets.take(ALICE, 10)), asyncio.get_running_loop()
        began = loop.time()
        over = refused(await budgets.take(BOB, 5))
        assert (over.whose, over.which, loop.time() - began) == ("all", "concurrentCost", 3)
        assert budgets.waiting == 0
        assert budgets.refused == {("default", "all", "concurrentCost"): 1}
        grant.release()
        granted(await budgets.take(BOB, 10))

    run(scenario())


def test_no_wait_is_possible() -> None:
    async def scenario() -> None:
        budgets = Budgets(config(wait_s=0))
        grant, loop = granted(await budgets.take(ALICE, 10)), asyncio.get_running_loop()
        began = loop.time()
        refused(await budgets.take(BOB, 5))
        assert loop.time() == began
        grant.release()
        granted(await budgets.take(BOB, 5))

    run(scenario())


def test_minute_frees_room_without_any_request_that_ends() -> None:
    async def scenario() -> None:
        budgets = Budgets(config(in_all=1000, wait_s=120, per_minute=10))
        granted(await budgets.take(ALICE, 10))
        assert 60 <= granted(await budgets.take(ALICE, 10)).waited_s <= 61

    run(scenario())


def test_clients_that_vanish_leave_nothing_behind() -> None:
    """They vanish while they wait, in the moment of the grant, and while they run."""

    async def scenario() -> None:
        budgets = Budgets(config())
        for when_s in (0, 1, 2, 2.5):
            running = asyncio.create_task(hold(budgets, ALICE, 10, 2))
            await asyncio.sleep(0)
            waiting = [asyncio.create_task(hold(budgets, BOB, 4, 1)) for _ in range(5)]
            await asyncio.sleep(when_s)
            for task in waiting[:4]:
                task.cancel()
            await asyncio.gather(running, *waiting, return_exceptions=True)
            assert waiting[4].result() >= 0
            assert budgets.waiting == 0
            assert budgets.all.running == 0

    run(scenario())


def test_cancel_in_the_step_of_the_grant_gives_the_budget_back() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        first = granted(await budgets.take(ALICE, 10))
        waiting = asyncio.create_task(budgets.take(BOB, 10))
        await asyncio.sleep(1)
        first.release()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert granted(await budgets.take(ALICE, 10)).waited_s == 0

    run(scenario())


@pytest.mark.parametrize("vanishes", [True, False], ids=["vanishes", "times-out"])
def test_large_request_that_gives_up_makes_way_at_once(vanishes: bool) -> None:
    async def scenario() -> None:
        budgets, loop = Budgets(config(wait_s=3)), asyncio.get_running_loop()
        running = granted(await budgets.take(ALICE, 5))
        large = asyncio.create_task(budgets.take(BOB, 8))
        await asyncio.sleep(1)
        small = asyncio.create_task(budgets.take(CAROL, 3))
        await asyncio.sleep(1)
        assert not small.done()
        if vanishes:
            large.cancel()
        await asyncio.wait([large])
        gave_up_at = loop.time()
        granted(await small).release()
        assert loop.time() == gave_up_at
        running.release()

    run(scenario())


def test_new_configuration_refuses_what_can_no_longer_fit() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        grant = granted(await budgets.take(ALICE, 10))
        waiting = asyncio.create_task(budgets.take(BOB, 8))
        await asyncio.sleep(1)
        budgets.replace(config(in_all=5))
        assert refused(await waiting).limit == 5
        budgets.replace(config(in_all=20))
        granted(await budgets.take(BOB, 8))
        grant.release()

    run(scenario())


def test_dry_run_neither_waits_nor_refuses_but_says_what_is_due() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        first = granted(await budgets.take(ALICE, 8, dry_run=True))
        second = granted(await budgets.take(BOB, 8, dry_run=True))
        assert first.over is None
        assert second.over is not None
        assert (second.over.whose, second.over.used, second.waited_s) == ("all", 8, 0)
        assert budgets.refused == {("default", "all", "concurrentCost"): 1}
        first.release()
        second.release()
        assert granted(await budgets.take(BOB, 8, dry_run=True)).over is None

    run(scenario())


def test_second_release_has_no_effect() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        grants = [granted(await budgets.take(ALICE, 5)) for _ in range(2)]
        for _ in range(3):
            grants[0].release()
        assert budgets.all.running == 5

    run(scenario())


def test_defaults_bound_what_each_caller_and_all_callers_run_at_once() -> None:
    async def scenario() -> None:
        defaults = parse_config("upstream: {url: http://prometheus:9090}\nqueue: {waitSeconds: 0}\n")
        budgets, dearest = Budgets(defaults), Limits().greatest_cost
        granted(await budgets.take(ALICE, dearest))
        assert refused(await budgets.take(ALICE, 1)).whose == "caller"
        granted(await budgets.take(BOB, dearest))
        assert refused(await budgets.take(CAROL, 1)).whose == "all"

    run(scenario())


def test_request_that_need_not_wait_never_overtakes_those_that_wait() -> None:
    async def scenario() -> None:
        budgets = Budgets(config())
        first = budgets.take_now(ALICE, 6)
        assert isinstance(first, Grant)
        assert budgets.take_now(BOB, 8) is None  # it would wait, and leaves nothing in the queue
        assert budgets.waiting == 0
        waiting = asyncio.create_task(budgets.take(BOB, 8))
        await asyncio.sleep(0)
        assert budgets.take_now(CAROL, 1) is None
        first.release()
        granted(await waiting).release()
        assert isinstance(budgets.take_now(CAROL, 1), Grant)
        assert isinstance(budgets.take_now(CAROL, 11), OverBudget)

    run(scenario())
