from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.transport import NotLeading
from muster.kube.errors import NotFound
from muster.kube.leader import LeaderElector
from muster.kube.metrics import kube_metrics
from muster.kube.objects.coordination import Lease
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, Fate
from muster.sim.virtual.process import Process
from muster.sim.virtual.sealed import sealed
from tests.support.waiting import until
from tests.unit.kube.fakeapi import FakeApi, fake_api, status

FAST: dict[str, Any] = {"lease_duration_s": 0.6, "renew_deadline_s": 0.4, "retry_period_s": 0.05}
USUAL: dict[str, Any] = {"lease_duration_s": 15.0, "renew_deadline_s": 10.0, "retry_period_s": 2.0}


def elector(client: Client, identity: str, **options: Any) -> LeaderElector:
    return LeaderElector(
        client,
        "muster-controller",
        "default",
        identity,
        rng=random.Random(identity),
        metrics=kube_metrics(CollectorRegistry()),
        **{**FAST, **options},
    )


@asynccontextmanager
async def competing(*electors: LeaderElector) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(one.run()) for one in electors]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def simulate(story: Callable[[VirtualLoop, VirtualCluster], Awaitable[None]]) -> None:
    """Run the story in virtual time, where no renewal is late because the machine is busy."""
    loop = VirtualLoop.new()
    cluster = VirtualCluster(loop, random.Random(1))

    async def main() -> None:
        await story(loop, cluster)

    try:
        with sealed(loop):
            loop.run(main())
    finally:
        loop.wind_up()


def test_one_leads_and_hands_over_at_once_when_it_ends() -> None:
    async def story(loop: VirtualLoop, cluster: VirtualCluster) -> None:
        one, two = (elector(cluster.client(name), name, **USUAL) for name in ("one", "two"))
        async with competing(one, two) as (first, second):
            await asyncio.sleep(USUAL["retry_period_s"])
            leader, other, task = (one, two, first) if one.leading else (two, one, second)
            assert leader.term is not None
            assert (leader.term.previous_holder, leader.term.transitions) == ("", 0)
            await asyncio.sleep(2 * USUAL["lease_duration_s"])  # it renews
            assert (leader.leading, other.leading) == (True, False)
            assert other.lost.is_set()
            assert not other.acquired.is_set()
            assert other.holder == leader.identity
            await stop(task)
            assert not leader.leading
            assert leader.lost.is_set()
            released = (await cluster.client("test").get(Lease, "muster-controller", "default")).spec
            assert not released.holder_identity
            await asyncio.sleep(3 * USUAL["retry_period_s"])
            assert other.leading
            assert other.term is not None
            assert (other.term.previous_holder, other.term.transitions) == ("", 1)

    simulate(story)


async def test_after_a_crash_the_next_waits_and_knows_when_the_last_one_stopped(client: Client, api: FakeApi) -> None:
    one = elector(client, "one")
    async with competing(one) as (task,):
        await until("it leads", lambda: one.leading)
        api.before.append(lambda request: web.Response(status=500) if request.method == "PUT" else None)
        await stop(task)  # the release fails: like a crash
        api.before.clear()
    two = elector(client, "two")
    clock = asyncio.get_running_loop().time
    started = clock()
    async with competing(two):
        term = await until("the next leads", lambda: two.term)
        assert term.previous_holder == "one"
        assert started + FAST["renew_deadline_s"] <= term.previous_deadline <= term.acquired_at
        assert term.acquired_at >= started + FAST["lease_duration_s"]
        assert term.transitions == 1


async def test_leader_after_a_release_waits_for_writes_in_flight(client: Client, api: FakeApi) -> None:
    slack = {"lease_duration_s": 60.0, "renew_deadline_s": 50.0}
    one, two = elector(client, "one", **slack), elector(client, "two")
    arrived = asyncio.Event()

    async def never(request: web.Request) -> None:
        if request.method == "POST" and "configmaps" in request.path:
            arrived.set()
            await asyncio.Event().wait()

    async with competing(one) as (task,):
        await until("it leads", lambda: one.leading)
        api.before.append(never)
        write = asyncio.create_task(client.create(ConfigMap(metadata=ObjectMeta(name="late", namespace="default"))))
        await arrived.wait()
        await asyncio.gather(stop(task), stop(write))
    async with competing(two):
        term = await until("the next leads, long before the lease would have ended", lambda: two.term)
        assert (term.previous_holder, term.transitions) == ("one", 1)


async def test_it_stops_leading_when_it_cannot_renew_and_leads_again_afterwards(client: Client, api: FakeApi) -> None:
    one = elector(client, "one")
    async with competing(one):
        await until("it leads", one.acquired.is_set)
        api.before.append(lambda _: web.json_response(status(500, "InternalError"), status=500))
        await until("it has lost the lease", one.lost.is_set)
        assert (one.leading, one.term) == (False, None)
        api.before.clear()
        term = await until("it leads again", lambda: one.term)
    assert term.previous_holder == "one"  # no other holder in between, but its own requests may be on their way
    assert term.previous_deadline <= term.acquired_at


async def test_a_frozen_leader_sees_that_it_no_longer_leads(client: Client, api: FakeApi) -> None:
    one = elector(client, "one")
    async with competing(one):
        await until("it leads", lambda: one.leading)

        async def hang(_: web.Request) -> None:
            await asyncio.sleep(30)

        api.before.append(hang)
        # even before its own task notices, acting is over at the deadline
        await until("it no longer leads", lambda: not one.leading)
        await until("it has lost the lease", one.lost.is_set)
        api.before.clear()


async def test_a_leader_that_was_stopped_does_not_send_what_it_decided_before(
    client: Client, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_s = 0.0
    monkeypatch.setattr("muster.kube.leader.time", SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_s))
    one = elector(client, "one", lease_duration_s=60.0, renew_deadline_s=50.0)
    fenced = one.fence(client)
    before, late = (ConfigMap(metadata=ObjectMeta(name=name, namespace="default")) for name in ("before", "late"))
    async with competing(one):
        await until("it leads", one.acquired.is_set)
        await fenced.create(before)
        stopped_s = 50.0
        assert one.acquired.is_set()  # its tasks have not noticed
        with pytest.raises(NotLeading):
            await fenced.create(late)
        assert not client.may_be_writing(60.0)
        assert (await fenced.get(ConfigMap, "before", "default")).name == "before"
        with pytest.raises(NotFound):
            await client.get(ConfigMap, "late", "default")


def test_a_simulated_leader_that_stood_still_does_not_send_what_it_decided_before() -> None:
    """As `--health --seed 990865` showed: a stopped process wakes with a request that it was about to send."""

    async def story(loop: VirtualLoop, cluster: VirtualCluster) -> None:
        process = Process("one")

        async def live() -> None:
            client = cluster.client("one")
            one = LeaderElector(client, "lease", "default", "one", rng=random.Random(2))
            group = [asyncio.create_task(one.run())]
            await one.acquired.wait()
            await asyncio.sleep(1.0)
            with pytest.raises(NotLeading):
                await one.fence(client).create(ConfigMap(metadata=ObjectMeta(name="late", namespace="default")))
            assert one.acquired.is_set(), "its tasks have not noticed"
            group[0].cancel()

        task = process.spawn(live())
        await asyncio.sleep(0.5)
        process.halt()
        await asyncio.sleep(30.0)
        process.resume()
        await task

    simulate(story)


async def test_a_write_that_waits_for_a_connection_asks_again_whether_it_may_be_sent(api: FakeApi) -> None:
    leads, arrived, answer = True, asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> None:
        arrived.set()
        await answer.wait()

    api.before.append(slow)
    async with Client(api.config(), connections=1, metrics=kube_metrics(CollectorRegistry())) as client:
        fenced = client.fenced(lambda: leads)
        first = asyncio.create_task(fenced.create(ConfigMap(metadata=ObjectMeta(name="first", namespace="default"))))
        await arrived.wait()
        second = asyncio.create_task(fenced.create(ConfigMap(metadata=ObjectMeta(name="second", namespace="default"))))
        await asyncio.sleep(0)  # it waits for the only connection
        leads = False
        answer.set()
        assert (await first).name == "first"
        with pytest.raises(NotLeading):
            await second
    assert api.count("POST") == 1


class SlowThenSilent(Calm):
    """The API server creates the lease late, answers that slowly, and then answers nothing more."""

    created = False

    def request(self, method: str, path: str) -> Fate:
        before, self.created = self.created, self.created or method == "POST"
        return Fate(there_s=1.0, back_s=2.0) if self.created and not before else Fate(lost=before)


def test_a_leader_never_believes_longer_than_the_server_has_known() -> None:
    async def story(loop: VirtualLoop, cluster: VirtualCluster) -> None:
        known: list[float] = []
        cluster.trace.listeners.append(
            lambda now, client, request, code, body: known.append(now) if request.method == "POST" else None
        )
        one = elector(cluster.client("one", SlowThenSilent(random.Random(1))), "one", **USUAL)
        async with competing(one):
            await one.acquired.wait()
            last = 0.0
            while one.acquired.is_set():
                last = loop.now if one.leading else last
                await asyncio.sleep(0.01)
            assert 0 < last <= known[0] + USUAL["renew_deadline_s"]

    simulate(story)


async def test_foreign_write_to_the_lease_ends_the_term(client: Client, api: FakeApi) -> None:
    one = elector(client, "one")
    async with competing(one):
        await until("it leads", lambda: one.leading)
        spec = {"holderIdentity": "thief", "leaseDurationSeconds": 60}
        api.put("muster-controller", resource="leases", spec=spec)
        await until("it has lost the lease", one.lost.is_set)
        assert one.holder == "thief"


def test_periods_must_fit_into_each_other(client: Client) -> None:
    with pytest.raises(ValueError, match="retry_period_s < renew_deadline_s < lease_duration_s"):
        elector(client, "x", renew_deadline_s=1.0)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(["fail", "heal", "wait", "drop"]), min_size=2, max_size=8), st.integers(0, 2**32))
def test_two_never_lead_at_once(plan: list[str], seed: int) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            rng, together = random.Random(seed), []
            clients = [
                Client(api.config(), user_agent=name, metrics=kube_metrics(CollectorRegistry()), timeout_s=0.2)
                for name in ("one", "two")
            ]
            electors = [elector(client, f"{number}") for number, client in enumerate(clients)]
            cut: set[str] = set()

            def partition(request: web.Request) -> web.Response | None:
                if request.headers["User-Agent"] not in cut:
                    return None
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

            async def observe() -> None:
                while True:
                    if all(one.leading for one in electors):
                        together.append(asyncio.get_running_loop().time())
                    await asyncio.sleep(0.002)

            api.before.append(partition)
            observer = asyncio.create_task(observe())
            async with competing(*electors):
                for action in plan:
                    if action in ("fail", "drop"):
                        cut.add(rng.choice(["one", "two"]))
                    elif action == "heal":
                        cut.clear()
                    await asyncio.sleep(rng.uniform(0.05, 0.3))
                cut.clear()
                await until("one leads again", lambda: any(one.leading for one in electors))
            await stop(observer)
            assert together == []
            for client in clients:
                await client.close()

    asyncio.run(scenario())
