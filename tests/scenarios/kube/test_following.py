"""Informers, leases and events on API servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.kube.client import Client
from muster.kube.events import WARNING, EventRecorder
from muster.kube.informer import Informer
from muster.kube.leader import LeaderElector
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.meta import ObjectMeta
from tests.support.waiting import until

LABELS = {"kept": "yes"}


@asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.run()) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def config_map(name: str, namespace: str, **labels: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels or LABELS))


@pytest.mark.parametrize("watch_list", [False, True], ids=["pages", "watchlist"])
async def test_an_informer_keeps_up(client: Client, namespace: str, metrics: KubeMetrics, watch_list: bool) -> None:
    for number in range(7):
        await client.create(config_map(f"c{number}", namespace))
    reported: list[tuple[str, str]] = []

    def listen(old: ConfigMap | None, new: ConfigMap | None) -> None:
        obj = new or old
        assert obj is not None
        reported.append(("added" if old is None else "deleted" if new is None else "changed", obj.name))

    informer = Informer(
        client,
        ConfigMap,
        namespace=namespace,
        label_selector="kept=yes",
        page=3,
        watch_list=watch_list,
        watch_timeout_s=2,  # several watches, each resumed
        metrics=metrics,
    )
    informer.add_handler(listen)
    async with running(informer):
        await informer.wait_synced(20)
        assert sorted(reported) == [("added", f"c{number}") for number in range(7)]
        reported.clear()
        await client.patch(ConfigMap, "c0", {"metadata": {"labels": {"kept": "no"}}}, namespace=namespace)
        await client.patch(ConfigMap, "c1", {"data": {"k": "v"}}, namespace=namespace)
        await client.delete(ConfigMap, "c2", namespace=namespace)
        await until("the changes are heard of", lambda: len(reported) == 3)
        assert reported == [("deleted", "c0"), ("changed", "c1"), ("deleted", "c2")]
        await asyncio.sleep(5)
        await client.create(config_map("late", namespace))
        await until("a change after resumed watches", lambda: f"{namespace}/late" in informer.store)
        listed = await client.list(ConfigMap, namespace, label_selector="kept=yes")
        assert {obj.key: obj for obj in listed.items} == dict(informer.store)
        reported.clear()
        async with asyncio.timeout(20):
            await informer.listed_since(asyncio.get_running_loop().time())
        assert (reported, len(informer.store)) == ([], 6)


async def test_long_lists_come_in_pages_of_one_snapshot(client: Client, namespace: str) -> None:
    for number in range(7):
        await client.create(config_map(f"c{number}", namespace))
    first = await client.list(ConfigMap, namespace, label_selector="kept=yes", limit=3)
    await client.create(config_map("z-later", namespace))
    second = await client.list(ConfigMap, namespace, label_selector="kept=yes", limit=3, continue_=first.continue_)
    third = await client.list(ConfigMap, namespace, label_selector="kept=yes", limit=3, continue_=second.continue_)
    names = [obj.name for page in (first, second, third) for obj in page.items]
    assert (names, third.continue_) == ([f"c{number}" for number in range(7)], "")
    assert first.resource_version == second.resource_version == third.resource_version
    everything = await client.list_all(ConfigMap, namespace, label_selector="kept=yes", page=2)
    assert len(everything.items) == 8


async def test_a_watch_ends_with_its_timeout(client: Client, namespace: str) -> None:
    version = (await client.list(ConfigMap, namespace)).resource_version
    await client.create(config_map("a", namespace))
    watch = client.watch(ConfigMap, namespace, label_selector="kept=yes", resource_version=version, timeout_s=2)
    assert [(event.type, event.object.name) async for event in watch if event.type != "BOOKMARK"] == [("ADDED", "a")]


async def test_leading_is_handed_over(client: Client, namespace: str, metrics: KubeMetrics) -> None:
    # A leader whose renewals a busy machine delays for the whole deadline steps down, as it must.
    periods: dict[str, Any] = {"lease_duration_s": 6.0, "renew_deadline_s": 5.0, "retry_period_s": 0.2}
    one, two = (
        LeaderElector(client, "muster-controller", namespace, name, metrics=metrics, **periods)
        for name in ("one", "two")
    )
    async with running(two):
        async with running(one):
            await until("one of them leads", lambda: one.leading or two.leading)
            first = one if one.leading else two
            await asyncio.sleep(1.2 * periods["lease_duration_s"])
            assert first.leading
            assert one.leading is not two.leading
        await until("the other leads", lambda: two.leading)
    assert two.holder == "two"


async def test_events_are_counted(client: Client, namespace: str, metrics: KubeMetrics) -> None:
    about = await client.create(config_map("a", namespace))
    async with EventRecorder(client, "muster-test", metrics=metrics) as recorder:
        for _ in range(3):
            recorder.event(about, WARNING, "Failed", "no room")
    (event,) = (await client.list(Event, namespace)).items
    assert (event.count, event.reason, event.involved_object.uid) == (3, "Failed", about.uid)
