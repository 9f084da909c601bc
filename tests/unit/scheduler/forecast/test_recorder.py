"""Ended gangs are recorded once each in the RunHistory, by the scheduler's controller, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.crd import KINDS, definition
from muster.api.run_history import RunHistory
from muster.api.trimmed import FORMS
from muster.kube.client import Client
from muster.kube.clock import instant
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import NotFound, Unavailable
from muster.kube.informers import Informers
from muster.kube.metrics import kube_metrics
from muster.scheduler.controller import SchedulerController
from muster.scheduler.forecast.recorder import ASK_AGAIN_S, WRITE_S
from muster.sim.virtual.network import Calm, InProcessTransport
from tests.support.virtualreplicas import GPU, JOBS, PODS, World

HISTORIES = "/apis/muster.dev/v1alpha1/namespaces/default/runhistories"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SOON_S = 10.0


class Recording:
    """A cluster whose jobs end as the test says, and the scheduler's controller."""

    def __init__(self) -> None:
        self.world = World(8, replicas=0)
        self.writes: list[float] = []
        self.world.cluster.trace.listeners.append(self._heard)

    def _heard(self, now: float, client: str, request: Any, code: int, body: bytes) -> None:
        if client == "controller-0" and request.method != "GET" and "/runhistories" in request.path:
            self.writes.append(now)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        self.world.run(story)

    @asynccontextmanager
    async def scheduling(self, client: Client | None = None) -> AsyncIterator[SchedulerController]:
        """One process that schedules."""
        client = client or self.client()
        scheduler = SchedulerController(
            client,
            "default",
            "test",
            clock=lambda: self.world.loop.now,
            registry=CollectorRegistry(),
            rng=random.Random(1),
            informers=Informers(client, FORMS, rng=random.Random(3)),
        )
        stop = asyncio.Event()
        term = asyncio.create_task(scheduler.run(stop))
        try:
            yield scheduler
        finally:
            stop.set()
            await term

    def client(self) -> Client:
        transport = InProcessTransport(
            self.world.cluster.core, "controller-0", Calm(random.Random(2)), self.world.cluster.trace
        )
        metrics = kube_metrics(CollectorRegistry())
        return Client(ClusterConfig(server="http://none"), transport=transport, metrics=metrics)

    def end(self, name: str, ran_s: float, phase: str = "Succeeded") -> None:
        """A new job of this name that has run for this long and has ended now."""
        self.world.add_job(name, 2)
        now = self.world.loop.now
        status = {
            "phase": phase,
            "attempt": 1,
            "ranAttempt": 1,
            "startTime": instant(now - ran_s),
            "completionTime": instant(now),
            "runSeconds": ran_s,
        }
        self.world.call("PATCH", f"{JOBS}/{name}/status", {"status": status})

    def history(self) -> dict[str, Any]:
        return self.world.call("GET", f"{HISTORIES}/muster")

    def recorded(self) -> dict[str, tuple[float, bool]]:
        """By the pattern of their names: run seconds, and whether they completed."""
        try:
            groups = self.history()["spec"].get("groups", [])
        except NotFound:
            return {}
        found = [
            (group["pattern"], run["runSeconds"], run.get("completed", False))
            for group in groups
            for run in group["runs"]
        ]
        assert len({name for name, *_ in found}) == len(found)
        return {name: (seconds, completed) for name, seconds, completed in found}

    def add_pod(self, name: str, *, gpus: int = 8, labels: dict[str, str] | None = None, **spec: Any) -> None:
        container = {"name": "worker", "image": "none", "resources": {"limits": {GPU: str(gpus)} if gpus else {}}}
        body = {"schedulerName": "muster", "containers": [container], **spec}
        self.world.call("POST", PODS, {"metadata": {"name": name, "labels": labels or {}}, "spec": body})

    def finish(self, pod: str, phase: str = "Succeeded") -> None:
        now = instant(self.world.loop.now)
        code = 0 if phase == "Succeeded" else 1
        state = {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}
        worker = {"name": "worker", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        self.world.call("PATCH", f"{PODS}/{pod}/status", {"status": {"phase": phase, "containerStatuses": [worker]}})


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.mark.slow
def test_each_job_is_recorded_once_across_restarts_of_the_controller(recording: Recording) -> None:
    async def story() -> None:
        recording.end("early", 100.0)
        async with recording.scheduling():
            await asyncio.sleep(SOON_S)
            assert recording.recorded() == {"early": (100.0, True)}
            recording.end("late", 50.0, "Failed")
            await asyncio.sleep(1.0)
        recording.end("between", 70.0)
        async with recording.scheduling():
            await asyncio.sleep(SOON_S)
            known = {"early": (100.0, True), "late": (50.0, False), "between": (70.0, True)}
            assert recording.recorded() == known
            version, count = recording.history()["metadata"]["resourceVersion"], len(recording.writes)
            await asyncio.sleep(3000.0)
            assert (recording.history()["metadata"]["resourceVersion"], len(recording.writes)) == (version, count)
        async with recording.scheduling():
            await asyncio.sleep(SOON_S)
            assert recording.recorded() == known
            assert len(recording.writes) == count

    recording.run(story)


def test_history_is_read_soon_after_an_api_server_that_did_not_answer(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        recording.end("ended", 100.0)
        async with recording.scheduling():
            await asyncio.sleep(SOON_S)
        recording.world.call("DELETE", f"{JOBS}/ended")
        client = recording.client()
        request, refused = client.request, []

        async def restarting(method: str, path: str, **options: Any) -> Any:
            if path == "/apis/muster.dev/v1alpha1" and len(refused) < 3:
                refused.append(path)
                raise Unavailable(503, "ServiceUnavailable", "the server is starting")
            return await request(method, path, **options)

        monkeypatch.setattr(client, "request", restarting)
        async with recording.scheduling(client) as scheduler:
            await asyncio.sleep(4 * SOON_S)
            assert (len(refused), scheduler.state.run_times.records) == (3, 1)

    recording.run(story)


@pytest.mark.slow
def test_many_ended_jobs_are_written_together(recording: Recording) -> None:
    async def story() -> None:
        async with recording.scheduling() as scheduler:
            await asyncio.sleep(SOON_S)
            for number in range(100):
                recording.end(f"j{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}", 10.0 + number)
                await asyncio.sleep(3.0)
            await asyncio.sleep(2 * WRITE_S)
            assert len(recording.recorded()) == 100
            assert len(recording.writes) <= 7
            assert all(later - earlier >= WRITE_S for earlier, later in pairwise(recording.writes))
            assert scheduler.state.run_times.records == 100

    recording.run(story)


def test_a_job_that_never_ran_is_not_recorded(recording: Recording) -> None:
    async def story() -> None:
        async with recording.scheduling():
            recording.world.add_job("waits", 2)
            await asyncio.sleep(SOON_S)
            recording.world.call("DELETE", f"{JOBS}/waits")
            recording.world.add_job("refused", 2)
            status = {"phase": "Failed", "completionTime": instant(recording.world.loop.now)}
            recording.world.call("PATCH", f"{JOBS}/refused/status", {"status": status})
            await asyncio.sleep(SOON_S)
            assert recording.recorded() == {}
            assert recording.writes == []

    recording.run(story)


def test_a_job_deleted_while_it_runs_would_have_run_longer(recording: Recording) -> None:
    async def story() -> None:
        async with recording.scheduling():
            recording.world.add_job("stopped", 2)
            now = recording.world.loop.now
            since = {"type": "Running", "status": "True", "reason": "Running", "message": ""}
            status = {
                "phase": "Running",
                "startTime": instant(now - 500),
                "runSeconds": 200.0,
                "conditions": [{**since, "lastTransitionTime": instant(now)}],
            }
            recording.world.call("PATCH", f"{JOBS}/stopped/status", {"status": status})
            await asyncio.sleep(100.0)
            recording.world.call("DELETE", f"{JOBS}/stopped")
            await asyncio.sleep(SOON_S)
            (seconds, completed) = recording.recorded()["stopped"]
            assert seconds == pytest.approx(300.0, abs=2.0)
            assert not completed

    recording.run(story)


def test_another_writer_is_first(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        client = recording.client()
        replace = client.replace

        async def late(obj: Any, **options: Any) -> Any:
            if isinstance(obj, RunHistory) and not recording.world.call("GET", f"{HISTORIES}/muster")["metadata"].get(
                "labels"
            ):
                recording.world.call("PATCH", f"{HISTORIES}/muster", {"metadata": {"labels": {"kept": "yes"}}})
            return await replace(obj, **options)

        monkeypatch.setattr(client, "replace", late)
        recording.end("first", 100.0)
        async with recording.scheduling(client):
            await asyncio.sleep(SOON_S)
            recording.end("second", 200.0)
            await asyncio.sleep(WRITE_S + SOON_S)
            assert recording.recorded() == {"first": (100.0, True), "second": (200.0, True)}
            assert recording.history()["metadata"]["labels"] == {"kept": "yes"}

    recording.run(story)


def test_a_deleted_history_begins_again_with_the_jobs_that_exist(recording: Recording) -> None:
    async def story() -> None:
        recording.end("stays", 100.0)
        recording.end("leaves", 200.0)
        async with recording.scheduling() as scheduler:
            await asyncio.sleep(SOON_S)
            recording.world.call("DELETE", f"{JOBS}/leaves")
            await asyncio.sleep(SOON_S)
            assert recording.recorded() == {"stays": (100.0, True), "leaves": (200.0, True)}
            recording.world.call("DELETE", f"{HISTORIES}/muster")
            await asyncio.sleep(WRITE_S + SOON_S)
            assert recording.recorded() == {"stays": (100.0, True)}
            await asyncio.sleep(WRITE_S)
            assert scheduler.state.run_times.records == 1

    recording.run(story)


def test_entries_that_make_no_sense_are_dropped_with_one_warning(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        recording.end("good", 100.0)
        async with recording.scheduling():
            await asyncio.sleep(SOON_S)
            groups = recording.history()["spec"]["groups"]
            wrong = {"uid": "wrong", "runSeconds": 5.0, "endTime": "2999-01-01T00:00:00Z"}
            edited = [*groups, {"pattern": "wrong", "runs": [wrong]}]
            with caplog.at_level(logging.WARNING):
                recording.world.call("PATCH", f"{HISTORIES}/muster", {"spec": {"groups": edited}})
                recording.world.call("PATCH", f"{HISTORIES}/muster", {"metadata": {"labels": {"a": "b"}}})
                await asyncio.sleep(WRITE_S)
                recording.end("next", 200.0)
                await asyncio.sleep(WRITE_S + SOON_S)
            assert recording.recorded() == {"good": (100.0, True), "next": (200.0, True)}
            assert [each for each in caplog.messages if "not readable" in each] == [
                "run-history: 1 entries of muster are not readable and are dropped"
            ]

    recording.run(story)


@pytest.mark.slow
def test_without_the_kind_run_times_stay_in_memory_until_it_is_installed(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        recording.world.call("DELETE", f"{DEFINITIONS}/runhistories.muster.dev")
        recording.end("done", 100.0)
        with caplog.at_level(logging.WARNING, logger="muster.scheduler.forecast.recorder"):
            async with recording.scheduling() as scheduler:
                recording.world.add_gang("gang", 2)
                await asyncio.sleep(4 * ASK_AGAIN_S)
                assert scheduler.state.run_times.records >= 1
                assert recording.world.call("GET", f"{PODS}/gang-0-0")["spec"]["nodeName"]
                assert len(caplog.messages) == 1
                kind = next(each for each in KINDS if each.resource == RunHistory.RESOURCE)
                recording.world.call("POST", DEFINITIONS, definition(kind))
                await asyncio.sleep(ASK_AGAIN_S + SOON_S)
                assert recording.recorded() == {"done": (100.0, True)}
                assert len(caplog.messages) == 1

    recording.run(story)


@pytest.mark.slow
def test_gangs_of_pods_run_from_the_first_bind_to_the_end_of_the_last_pod(recording: Recording) -> None:
    async def story() -> None:
        async with recording.scheduling():
            recording.world.add_gang("gang", 2)
            recording.add_pod("single")
            recording.add_pod("failed")
            recording.add_pod("deleted")
            await asyncio.sleep(100.0)
            recording.finish("gang-0-0")
            recording.finish("single")
            recording.finish("failed", "Failed")
            recording.world.call("DELETE", f"{PODS}/deleted", {"gracePeriodSeconds": 0})
            await asyncio.sleep(100.0)
            assert "gang" not in recording.recorded()
            recording.finish("gang-1-0")
            await asyncio.sleep(WRITE_S + SOON_S)
            found = recording.recorded()
            assert {name: completed for name, (_, completed) in found.items()} == {
                "gang": True,
                "single": True,
                "failed": False,
                "deleted": False,
            }
            assert found["single"][0] == pytest.approx(100.0, abs=3.0)
            assert found["gang"][0] == pytest.approx(200.0, abs=3.0)
            count = len(recording.writes)
        async with recording.scheduling():
            await asyncio.sleep(WRITE_S + SOON_S)
            assert recording.recorded() == found
            assert len(recording.writes) == count

    recording.run(story)


def test_pods_that_no_gang_waits_for_are_not_recorded(recording: Recording) -> None:
    async def story() -> None:
        async with recording.scheduling():
            recording.add_pod("balloon", labels={"muster.dev/balloon": "true"})
            recording.add_pod("small", gpus=0)
            recording.world.call("POST", PODS, _unbound("waits"))
            await asyncio.sleep(SOON_S)
            for name in ("balloon", "small"):
                recording.finish(name)
            recording.world.call("DELETE", f"{PODS}/waits", {"gracePeriodSeconds": 0})
            await asyncio.sleep(SOON_S)
            assert recording.writes == []

    recording.run(story)


def _unbound(name: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "none", "resources": {"limits": {GPU: "64"}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "muster", "containers": [container]}}
