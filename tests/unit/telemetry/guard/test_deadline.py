"""Issue 17: work that need not wait costs no timer, and work that waits has its deadline."""

from __future__ import annotations

import asyncio

import pytest

from muster.sim.virtual.loop import VirtualLoop
from muster.telemetry.guard.deadline import within


async def _slept(*pauses_s: float) -> str:
    for each in pauses_s:
        await asyncio.sleep(each)
    return "done"


def test_work_ends_before_the_deadline_or_times_out() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await within(5.0, _slept()) == "done"
        assert await within(5.0, _slept(0, 1, 2)) == "done"
        assert loop.time() - began_s == 3.0
        with pytest.raises(TimeoutError):
            await within(5.0, _slept(1, 10))
        assert loop.time() - began_s == 8.0

    VirtualLoop.new().run(scenario())


@pytest.mark.parametrize("pauses_s", [(), (1.0,)])
def test_errors_of_work_are_raised(pauses_s: tuple[float, ...]) -> None:
    async def broken() -> None:
        await _slept(*pauses_s)
        raise KeyError("x")

    with pytest.raises(KeyError):
        VirtualLoop.new().run(within(5.0, broken()))


def test_cancellation_reaches_the_work_which_may_clean_up() -> None:
    async def scenario() -> None:
        cleaned, began_s = [], asyncio.get_running_loop().time()

        async def work() -> None:
            try:
                await _slept(100)
            finally:
                await _slept(1)
                cleaned.append(True)

        task = asyncio.create_task(within(50.0, work()))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [True]
        assert asyncio.get_running_loop().time() - began_s == 3.0

    VirtualLoop.new().run(scenario())


def test_work_may_have_deadlines_of_its_own() -> None:
    async def inner() -> str:
        try:
            async with asyncio.timeout(1):
                return await _slept(100)
        except TimeoutError:
            return await _slept(1)

    assert VirtualLoop.new().run(within(5.0, inner())) == "done"
