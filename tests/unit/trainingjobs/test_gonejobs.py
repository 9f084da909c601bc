"""A job counts as deleted only if the API server itself says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.metrics import kube_metrics
from muster.trainingjobs.rendezvous import gonejobs
from muster.trainingjobs.rendezvous.gonejobs import GoneJobs
from tests.unit.kube.fakeapi import FakeApi, fake_api, status

JOB = {
    "metadata": {"namespace": "ns", "name": "j", "uid": "old"},
    "spec": {"replicas": 1, "image": "i", "command": ["c"]},
}
PATH = "/apis/muster.dev/v1alpha1/namespaces/ns/trainingjobs/j"


class World:
    """An API server whose answers the test chooses, and a clock."""

    def __init__(self, api: FakeApi, client: Client) -> None:
        self.api, self.now = api, 0.0
        self.gone = GoneJobs(client, lambda: self.now)

    async def is_gone(self, answer: Callable[[], web.Response], uid: str = "old") -> bool:
        """Ask a while after the last time."""
        self.now += 10.0
        self.api.before[:] = [lambda _: answer()]
        return await self.gone.is_gone("ns/j", uid)


@asynccontextmanager
async def worlds() -> AsyncIterator[World]:
    async with (
        fake_api() as api,
        Client(api.config(), metrics=kube_metrics(CollectorRegistry()), retry_for_s=0) as client,
    ):
        yield World(api, client)


def absent() -> web.Response:
    return web.json_response(status(404, "NotFound"), status=404)


def proxy() -> web.Response:
    return web.Response(text="<h1>no such page</h1>", status=404)


def page() -> web.Response:
    return web.Response(text="<h1>sign in</h1>")


def healthy() -> web.Response:
    return web.json_response({"status": "ok"})


def nameless() -> web.Response:
    return web.json_response({"metadata": {"uid": "gateway"}})


def busy() -> web.Response:
    return web.json_response(status(403, "Forbidden"), status=403)


async def test_absent_job_is_gone_and_asked_about_once() -> None:
    async with worlds() as world:
        assert await world.is_gone(absent)
        assert await world.is_gone(lambda: web.json_response(JOB))
        assert [path for _, path, *_ in world.api.requests] == [PATH]


async def test_job_that_has_the_name_of_another_is_gone() -> None:
    async with worlds() as world:
        assert not await world.is_gone(lambda: web.json_response(JOB), "old")
        assert await world.is_gone(lambda: web.json_response(JOB), "older")


@pytest.mark.parametrize("answer", [proxy, page, healthy, nameless, busy])
async def test_answer_that_proves_nothing_is_asked_for_again(answer: Callable[[], web.Response]) -> None:
    async with worlds() as world:
        assert not await world.is_gone(answer)
        assert await world.is_gone(absent)


async def test_job_with_fields_that_this_version_cannot_read_exists() -> None:
    newer = JOB | {"spec": {"replicas": "many"}}
    async with worlds() as world:
        assert not await world.is_gone(lambda: web.json_response(newer))
        assert await world.is_gone(lambda: web.json_response(newer), "older")


async def test_many_supervisors_cost_one_request() -> None:
    async with worlds() as world:
        assert not await world.is_gone(lambda: web.json_response(JOB))
        for _ in range(100):
            assert not await world.gone.is_gone("ns/j", "old")
        assert len(world.api.requests) == 1


async def test_requests_about_many_jobs_are_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gonejobs, "_AT_ONCE", 3)
    uids = [f"uid-{number}" for number in range(8)]
    async with worlds() as world:
        world.api.before[:] = [lambda _: absent()]
        for known in (3, 6, 8):
            answers = await asyncio.gather(*(world.gone.is_gone("ns/j", uid) for uid in uids))
            assert (sum(answers), len(world.api.requests)) == (known, known)


async def test_known_jobs_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gonejobs, "_JOBS_MAX", 2)
    async with worlds() as world:
        for uid in ("a", "b", "c", "a", "c"):
            assert await world.is_gone(absent, uid)
        assert len(world.api.requests) == 4
