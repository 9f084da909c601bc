from __future__ import annotations

import asyncio
import random

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.kube.fakeapi import FakeApi, status


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"))


def written(api: FakeApi) -> list[tuple[str, str, int]]:
    events = api.objects.get("events", {}).values()
    return sorted((e["involvedObject"]["name"], e["message"], e["count"]) for e in events)


async def until_written(api: FakeApi, *events: tuple[str, str, int]) -> None:
    """Wait for exactly these. A recorder that ends gives up after two seconds, which a busy machine may need."""
    await until("the events are written", lambda: written(api) == sorted(events))


async def test_the_same_event_again_only_counts(client: Client, api: FakeApi, metrics: KubeMetrics) -> None:
    async with EventRecorder(client, "muster-scheduler", metrics=metrics) as recorder:
        for _ in range(3):
            recorder.event(pod("a"), WARNING, "Unschedulable", "no room")
        recorder.event(pod("b"), NORMAL, "Bound", "bound to n1")
        await until_written(api, ("a", "no room", 3), ("b", "bound to n1", 1))
    event = next(e for e in api.objects["events"].values() if e["involvedObject"]["name"] == "a")
    assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"], event["type"]) == (
        "Pod",
        "uid-a",
        "Warning",
    )
    assert event["source"] == {"component": "muster-scheduler"}
    assert event["metadata"]["name"].startswith("a.")


async def test_many_different_messages_become_one(client: Client, api: FakeApi, metrics: KubeMetrics) -> None:
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        for number in range(15):
            recorder.event(pod("a"), WARNING, "Failed", f"failure {number}")
        combined = ("a", "(combined from similar events): failure 14", 5)
        await until_written(api, combined, *(("a", f"failure {number}", 1) for number in range(10)))


async def test_one_object_cannot_flood_the_api_server_and_others_are_still_heard(
    client: Client, api: FakeApi, metrics: KubeMetrics, registry: CollectorRegistry
) -> None:
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        for _ in range(100):
            recorder.event(pod("noisy"), WARNING, "Failed", "again")
        recorder.event(pod("quiet"), WARNING, "Failed", "once")
        await until_written(api, ("noisy", "again", 25), ("quiet", "once", 1))
    assert registry.get_sample_value("muster_events_total", {"outcome": "suppressed"}) == 75


async def test_event_forgotten_by_the_server_is_created_again(
    client: Client, api: FakeApi, metrics: KubeMetrics
) -> None:
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        recorder.event(pod("a"), NORMAL, "R", "m")
        await until("the event is written", lambda: written(api))
        api.objects["events"].clear()
        recorder.event(pod("a"), NORMAL, "R", "m")
        await until_written(api, ("a", "m", 1))


@pytest.mark.slow
async def test_events_never_block_or_raise_and_long_ones_are_cut(
    client: Client, api: FakeApi, metrics: KubeMetrics, registry: CollectorRegistry
) -> None:
    api.before.append(lambda _: web.json_response(status(403, "Forbidden"), status=403))
    names = [f"p{number}" for number in random.Random(1).sample(range(10_000), 1200)]
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        for name in names:
            recorder.event(pod(name), NORMAL, "R", "ü" * 2000)
        await until(
            "every event is given up",
            lambda: registry.get_sample_value("muster_events_total", {"outcome": "failed"}) == 1000,
        )
    assert registry.get_sample_value("muster_events_total", {"outcome": "dropped"}) == 200
    api.before.clear()
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        recorder.event(pod("a"), NORMAL, "R", "ü" * 2000)
        ((_, message, _),) = await until("the event is written", lambda: written(api))
    assert len(message.encode()) <= 1024
    assert message.endswith("...")


async def test_closing_gives_up_on_a_dead_server_in_time(client: Client, api: FakeApi, metrics: KubeMetrics) -> None:
    async def hang(_: web.Request) -> None:
        await asyncio.sleep(3600)

    api.before.append(hang)
    async with EventRecorder(client, "x", metrics=metrics) as recorder:
        recorder.event(pod("a"), NORMAL, "R", "m")
        async with asyncio.timeout(TIMEOUT_S):
            await recorder.close(timeout_s=0.05)
