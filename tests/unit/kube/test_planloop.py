"""Plan loops in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.planloop import PlanLoop, Rest
from muster.kube.progress import Progress
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop

STALL_S = 30.0


def in_virtual_time(story: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        await story(loop)

    try:
        loop.run(main())
    finally:
        loop.wind_up()


@pytest.mark.parametrize(
    ("wake_at", "wait_s"),
    [
        pytest.param(None, 60.0, id="no moment is known"),
        pytest.param(110.0, 8.0, id="the settle time counts"),
        pytest.param(101.0, 0.0, id="sooner than the settle time"),
        pytest.param(90.0, 0.0, id="in the past"),
        pytest.param(500.0, 60.0, id="later than the idle time"),
    ],
)
def test_rest_until_a_moment(wake_at: float | None, wait_s: float) -> None:
    assert Rest.until(wake_at, 100.0, settle_s=2.0, idle_s=60.0) == Rest(2.0, wait_s)


def test_changes_while_settling_lead_to_one_plan_and_a_later_change_ends_the_wait() -> None:
    async def story(loop: VirtualLoop) -> None:
        began, plans = loop.now, list[float]()
        plan_loop = PlanLoop("test", fence_s=10.0, stall_s=STALL_S)

        async def plan() -> Rest | None:
            plans.append(loop.now - began)
            return Rest(2.0, 60.0) if len(plans) < 4 else None

        for at in (0.5, 1.0, 10.0):
            loop.call_at(began + at, plan_loop.wake)
        loop.call_at(began + 20.0, plan_loop.wake, False)
        await plan_loop.run(plan)
        assert plans == [0.0, 2.0, 10.0, 72.0]

    in_virtual_time(story)


def test_change_during_a_plan_leads_to_another() -> None:
    async def story(loop: VirtualLoop) -> None:
        plans = list[float]()
        plan_loop = PlanLoop("test", fence_s=10.0, stall_s=STALL_S)

        async def plan() -> Rest | None:
            plans.append(loop.now)
            if len(plans) == 1:
                plan_loop.wake()
            return Rest(2.0, 60.0) if len(plans) < 2 else None

        await plan_loop.run(plan)
        assert plans[1] - plans[0] == 2.0

    in_virtual_time(story)


def test_plan_that_does_not_end_is_overdue_and_a_loop_that_ended_is_not() -> None:
    async def story(loop: VirtualLoop) -> None:
        progress = Progress(clock=loop.time)
        plan_loop = PlanLoop("test", fence_s=10.0, stall_s=STALL_S, progress=progress)
        hangs = asyncio.Event()

        async def plan() -> Rest:
            if hangs.is_set():
                await asyncio.Event().wait()
            return Rest(STALL_S, STALL_S)

        task = asyncio.create_task(plan_loop.run(plan))
        await asyncio.sleep(10 * STALL_S)
        assert progress.overdue() == {}
        hangs.set()
        await asyncio.sleep(4 * STALL_S)
        assert progress.overdue().keys() == {"test"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert progress.overdue() == {}

    in_virtual_time(story)


def test_term_begins_when_no_request_of_the_previous_leader_can_take_effect() -> None:
    async def story(loop: VirtualLoop) -> None:
        began = loop.time()
        plan_loop = PlanLoop("test", fence_s=10.0, stall_s=STALL_S)
        await plan_loop.begin(None)
        assert loop.time() == began
        await plan_loop.begin(Term(began, "other", began - 3.0, 1))
        assert loop.time() == began + 7.0

    in_virtual_time(story)


def test_follow_waits_for_the_first_list_of_every_informer() -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = VirtualCluster(loop, random.Random(1))
        cluster.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "one"}})
        shared = Informers(cluster.client("test"), {}, rng=random.Random(2))
        informers = [shared.of(ConfigMap), shared.of(ConfigMap, namespace="default")]
        plan_loop = PlanLoop("test", fence_s=10.0, stall_s=STALL_S)
        async with asyncio.TaskGroup() as group:
            await plan_loop.follow(group, *informers)
            assert all("default/one" in each.store for each in informers)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    in_virtual_time(story)
