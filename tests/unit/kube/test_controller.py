from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.controller import Controller, Reconcile
from muster.kube.errors import Conflict
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.leader import LeaderElector
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.core import ConfigMap
from muster.kube.workqueue import WorkQueue
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.kube.fakeapi import FakeApi

# Long enough that a busy machine renews in time.
FAST: dict[str, Any] = {"lease_duration_s": 1.5, "renew_deadline_s": 1.2, "retry_period_s": 0.05}


@asynccontextmanager
async def running(
    client: Client, reconcile: Reconcile, metrics: KubeMetrics, elector: LeaderElector | None = None, **options: Any
) -> AsyncIterator[tuple[Controller, Informer[ConfigMap]]]:
    informer = Informer(client, ConfigMap, metrics=metrics)
    queue: WorkQueue[str] = WorkQueue(base_delay_s=0.005, max_delay_s=0.02, rng=random.Random(1))
    controller = Controller("test", reconcile, elector=elector, queue=queue, metrics=metrics, **options)
    controller.watch(informer)
    tasks = [asyncio.create_task(work) for work in (informer.run(), controller.run())]
    if elector is not None:
        tasks.append(asyncio.create_task(elector.run()))
    try:
        yield controller, informer
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


async def test_every_change_is_reconciled_and_failures_are_tried_again(
    client: Client, api: FakeApi, metrics: KubeMetrics, registry: CollectorRegistry
) -> None:
    done: list[str] = []
    failures = {"default/b": [ValueError("broken"), Conflict(409), TimeoutError()]}

    async def reconcile(key: str) -> float | None:
        if failures.get(key):
            raise failures[key].pop(0)
        done.append(key)
        return None

    for name in "ab":
        api.put(name)
    async with running(client, reconcile, metrics) as (controller, _):
        await until("both reconciled", lambda: sorted(done) == ["default/a", "default/b"])
        assert controller.queue.failures("default/b") == 0
        done.clear()
        api.put("a")
        api.remove("b")
        await until("both reconciled again", lambda: sorted(done) == ["default/a", "default/b"])
        for error in ("ValueError", "Conflict", "TimeoutError"):
            labels = {"controller": "test", "error": error}
            assert registry.get_sample_value("muster_reconcile_errors_total", labels) == 1
        assert registry.get_sample_value("muster_queue_depth", {"controller": "test"}) == 0
        assert registry.get_sample_value("muster_reconcile_duration_seconds_count", {"controller": "test"}) == 7


async def test_it_comes_back_when_asked_to(client: Client, api: FakeApi, metrics: KubeMetrics) -> None:
    count = 0

    async def reconcile(key: str) -> float | None:
        nonlocal count
        count += 1
        return 0.01 if count < 4 else None

    api.put("a")
    async with running(client, reconcile, metrics):
        await until("four tries", lambda: count == 4)


async def test_nothing_is_done_before_the_caches_are_complete(
    client: Client, api: FakeApi, metrics: KubeMetrics
) -> None:
    api.put("a")
    release = asyncio.Event()
    seen: list[int] = []

    async def hold(request: web.Request) -> None:
        if "secrets" in request.path:
            await release.wait()

    api.before.append(hold)
    from muster.kube.objects.core import Secret

    other = Informer(client, Secret, metrics=metrics)
    task = asyncio.create_task(other.run())

    async def reconcile(key: str) -> None:
        seen.append(len(other.store))

    api.put("s", resource="secrets")
    async with running(client, reconcile, metrics, informers=[other]) as (controller, informer):
        await informer.wait_synced(TIMEOUT_S)
        assert (controller.working, seen) == (False, [])
        assert controller.not_ready() == "no complete list of secrets yet"
        release.set()
        await until("it is reconciled", lambda: seen == [1])
        assert controller.not_ready() is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_reconcile_that_hangs_is_cancelled_and_reported_by_liveness(
    client: Client, api: FakeApi, metrics: KubeMetrics
) -> None:
    now = [0.0]
    progress = Progress(clock=lambda: now[0])
    started: list[str] = []

    async def reconcile(key: str) -> None:
        started.append(key)
        if len(started) == 1:
            await asyncio.sleep(60)

    api.put("a")
    async with running(client, reconcile, metrics, progress=progress, reconcile_timeout_s=0.1):
        await until("it is tried again", lambda: len(started) == 2)
        now[0] = 10
        assert list(progress.overdue()) == ["test"]
        await until("an idle controller marks progress", lambda: not progress.overdue())
    assert progress.overdue() == {}


def elector(client: Client, identity: str, metrics: KubeMetrics) -> LeaderElector:
    return LeaderElector(client, "lease", "default", identity, rng=random.Random(1), metrics=metrics, **FAST)


@pytest.mark.slow
async def test_only_the_leader_works_and_a_new_one_starts_from_a_new_list_with_every_key(
    client: Client, api: FakeApi, metrics: KubeMetrics
) -> None:
    done: dict[str, list[str]] = {"one": [], "two": []}
    first_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time

    def work_of(name: str) -> Reconcile:
        async def reconcile(key: str) -> None:
            first_at.setdefault(name, clock())
            done[name].append(key)

        return reconcile

    for name in "abc":
        api.put(name)
    rival = Client(api.config(), user_agent="two", metrics=metrics)
    one, two = elector(client, "one", metrics), elector(rival, "two", metrics)
    async with rival, running(client, work_of("one"), metrics, one):
        await until("the leader reconciles all", lambda: len(done["one"]) >= 3)
        async with running(rival, work_of("two"), metrics, two, fence_s=1.0) as (controller, informer):
            await informer.wait_synced(TIMEOUT_S)
            await until("the other knows who leads", lambda: two.holder == "one")
            assert (done["two"], controller.working) == ([], False)

            def cut(request: web.Request) -> web.Response | None:  # the first loses its lease without a word
                mine = request.headers["User-Agent"] == "muster" and "leases" in request.path
                return web.Response(status=500) if mine else None

            api.before.append(cut)
            lists = api.count("GET", watch=False)
            term = await until("the next leader reconciles all", lambda: two.term if len(done["two"]) >= 3 else None)
            assert term.previous_holder == "one"
            assert first_at["two"] >= term.previous_deadline + 1.0  # by then no request of the first can take effect
            assert set(done["two"]) == {"default/a", "default/b", "default/c"}
            assert api.count("GET", watch=False) > lists
            before = len(done["one"])
            api.put("d")
            await until("the next leader hears of changes", lambda: "default/d" in done["two"])
            assert len(done["one"]) == before


async def test_workers_are_cancelled_when_the_lease_is_lost(client: Client, api: FakeApi, metrics: KubeMetrics) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def reconcile(key: str) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    api.put("a")
    one = elector(client, "one", metrics)
    async with running(client, reconcile, metrics, one) as (controller, _):
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        api.put("lease", resource="leases", spec={"holderIdentity": "thief", "leaseDurationSeconds": 60})
        await asyncio.wait_for(cancelled.wait(), TIMEOUT_S)
        await until("the work has stopped", lambda: not controller.working)
        assert controller.queue.running == 0
