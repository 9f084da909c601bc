from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.kube.workqueue import WorkQueue, WorkQueueShutDown
from tests.support.waiting import TIMEOUT_S, until


async def test_a_key_waits_once_and_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert [await queue.get() for _ in range(len(queue))] == ["a", "b", "c"]


async def test_a_key_added_while_it_runs_comes_again_only_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert (len(queue), queue.running) == (0, 1)
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_oldest_key_is_the_one_that_has_been_ready_the_longest() -> None:
    now = [100.0]
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now[0])
    assert queue.oldest_s() == 0.0
    queue.add("a")
    now[0] += 5
    queue.add("b")
    queue.add("a")
    assert queue.oldest_s() == 5.0
    assert await queue.get() == "a"
    assert queue.oldest_s() == 0.0
    now[0] += 2
    queue.add("a")
    queue.done("a")
    assert (queue.oldest_s(), await queue.get(), queue.oldest_s()) == (2.0, "b", 0.0)


async def test_failures_back_off_per_key_until_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(base_delay_s=1, max_delay_s=8, rng=random.Random(1))
    delays = [queue.add_rate_limited("a") for _ in range(6)]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, [1, 2, 4, 8, 8, 8], strict=True))
    assert queue.add_rate_limited("b") <= 1
    queue.forget("a")
    assert (queue.failures("a"), queue.failures("b")) == (0, 1)
    assert queue.add_rate_limited("a") <= 1
    queue.shut_down()


async def test_the_earliest_of_several_times_stands_and_adding_beats_them() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 30)
    queue.add_after("a", 0.02)
    queue.add_after("a", 60)
    assert queue.delayed == 1
    async with asyncio.timeout(TIMEOUT_S):
        assert await queue.get() == "a"
    queue.done("a")
    queue.add_after("b", 30)
    queue.add("b")
    assert await queue.get() == "b"
    queue.done("b")
    assert (len(queue), queue.delayed) == (0, 0)
    queue.shut_down()


async def test_shutting_down_hands_out_what_is_ready_and_ends_every_wait() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.shut_down()
    queue.add("late")
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert sorted(map(str, results)) == ["", "", "a"]
    with pytest.raises(WorkQueueShutDown):
        await queue.get()


async def test_a_cancelled_waiter_does_not_swallow_a_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first, which is cancelled before it runs
    first.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        assert await second == "a"
    assert first.cancelled() or isinstance((await asyncio.gather(first, return_exceptions=True))[0], BaseException)


actions = st.lists(
    st.tuples(st.sampled_from(["add", "after", "fail", "work"]), st.integers(0, 4)), min_size=1, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(1, 4), st.integers(0, 2**32))
def test_a_key_never_runs_twice_at_once_and_no_addition_is_lost(
    plan: list[tuple[str, int]], workers: int, seed: int
) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        queue: WorkQueue[int] = WorkQueue(base_delay_s=0.0005, max_delay_s=0.002, rng=rng)
        running: Counter[int] = Counter()
        version: Counter[int] = Counter()
        seen: dict[int, int] = {}

        async def worker() -> None:
            while True:
                key = await queue.get()
                running[key] += 1
                assert running[key] == 1, f"{key} runs twice"
                seen[key] = version[key]
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                running[key] -= 1
                queue.done(key)

        tasks = [asyncio.create_task(worker()) for _ in range(workers)]
        for action, key in plan:
            if action == "work":
                await asyncio.sleep(0)
                continue
            version[key] += 1
            if action == "add":
                queue.add(key)
            elif action == "after":
                queue.add_after(key, rng.uniform(0, 0.002))
            else:
                queue.add_rate_limited(key)
        await until("the queue is empty", lambda: not len(queue) and not queue.running and not queue.delayed)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert seen == dict(version)

    asyncio.run(scenario())


async def test_a_time_that_passes_while_the_key_waits_for_a_worker_does_not_stand_for_later_ones() -> None:
    queue: WorkQueue[int] = WorkQueue()
    queue.add(1)
    queue.add_after(1, 0.001)
    await until("its time has passed", lambda: not queue.delayed)
    assert await queue.get() == 1
    queue.done(1)
    queue.add_after(1, 0.001)
    assert await asyncio.wait_for(queue.get(), 60) == 1
