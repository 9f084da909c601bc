"""Calls that are shared."""

from __future__ import annotations

import asyncio

import pytest

from muster.readcache.upstream.rounds import Rounds


class Counting:
    """A call that takes as long as a test lets it."""

    def __init__(self) -> None:
        self.began = 0
        self.gates: list[asyncio.Future[int]] = []

    async def __call__(self) -> int:
        self.began += 1
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        return await gate


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_that_wait_share_one_round_and_none_gets_a_result_that_began_before() -> None:
    counting = Counting()
    rounds = Rounds(counting, (ValueError,))
    first = [asyncio.create_task(rounds.result()) for _ in range(3)]
    await _turns()
    later = [asyncio.create_task(rounds.result()) for _ in range(100)]
    await _turns()
    assert counting.began == 1
    counting.gates[0].set_result(1)
    await _turns()
    assert [each.result() for each in first] == [1, 1, 1]
    assert counting.began == 2
    assert not any(each.done() for each in later)
    counting.gates[1].set_result(2)
    assert await asyncio.gather(*later) == [2] * 100
    assert counting.began == 2


async def test_a_failure_reaches_its_round_only() -> None:
    counting = Counting()
    rounds = Rounds(counting, (ValueError,))
    first = [asyncio.create_task(rounds.result()) for _ in range(2)]
    await _turns()
    second = asyncio.create_task(rounds.result())
    await _turns()
    counting.gates[0].set_exception(ValueError("broken"))
    for each in first:
        with pytest.raises(ValueError, match="broken"):
            await each
    await _turns()
    counting.gates[1].set_result(5)
    assert await second == 5


async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    counting = Counting()
    rounds = Rounds(counting, (ValueError,))
    impatient, patient = asyncio.create_task(rounds.result()), asyncio.create_task(rounds.result())
    await _turns()
    impatient.cancel()
    await _turns()
    counting.gates[0].set_result(7)
    assert await patient == 7
    await rounds.close()


async def test_close_ends_the_calls_under_way() -> None:
    counting = Counting()
    rounds = Rounds(counting, (ValueError,))
    waiting = [asyncio.create_task(rounds.result())]
    await _turns()
    waiting.append(asyncio.create_task(rounds.result()))
    await _turns()
    await rounds.close()
    assert counting.gates[0].cancelled()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
