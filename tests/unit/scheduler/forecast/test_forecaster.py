"""Waiting jobs get estimates of their start from jobs that ended, with a whole controller in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from muster.kube.clock import instant
from muster.sim.virtual.network import Calm, Fate, Fates
from tests.support.virtualreplicas import JOBS, World

HISTORY = "/apis/muster.dev/v1alpha1/namespaces/default/runhistories/muster"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.muster.dev"
FIRST_S = 90.0
"""A new leader begins, the history is read, and estimates are made every 30 s."""


class LateHistory(Calm):
    """The API server answers late about the RunHistory."""

    def request(self, method: str, path: str) -> Fate:
        return Fate(3.0, 0.0) if "/runhistories" in path else super().request(method, path)


class Queue:
    """Two nodes, on which jobs end after a few minutes."""

    def __init__(self, ended: int, fates: Callable[[random.Random], Fates] = Calm) -> None:
        self.world = World(2, fates=fates)
        self.status_writes: list[tuple[str, float]] = []
        for number in range(ended):
            self._end(f"train-{number}", 200.0 + 20 * number)
        self.world.cluster.trace.listeners.append(self._heard)

    def _heard(self, now: float, client: str, request: Any, code: int, body: bytes) -> None:
        if request.method == "PATCH" and request.path.endswith("/status") and "startForecast" in str(request.body):
            self.status_writes.append((request.path.split("/")[-2], now))

    def _end(self, name: str, ran_s: float) -> None:
        self.world.add_job(name, 2)
        now = self.world.loop.now
        times = {"startTime": instant(now - ran_s), "completionTime": instant(now)}
        complete = {"type": "Complete", "status": "True", "reason": "Succeeded", "message": ""}
        conditions = [{**complete, "lastTransitionTime": instant(now)}]
        status = {"phase": "Succeeded", "attempt": 1, "ranAttempt": 1, "runSeconds": ran_s, **times}
        self.world.call("PATCH", f"{JOBS}/{name}/status", {"status": {**status, "conditions": conditions}})

    def forecast(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.world.job(name).get("status", {}).get("startForecast", {})
        return found

    def calibration(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.call("GET", HISTORY)["spec"].get("calibration", {})
        return found

    async def two_jobs(self) -> None:
        """One has both nodes, the other one waits."""
        self.world.add_job("train-100", 2)
        await asyncio.sleep(20.0)
        self.world.add_job("train-101", 2)
        await asyncio.sleep(FIRST_S)


@pytest.mark.slow
def test_a_waiting_job_gets_an_interval_which_goes_when_it_starts_and_counts_then() -> None:
    queue = Queue(ended=20)
    world = queue.world

    async def story() -> None:
        await queue.two_jobs()
        found = queue.forecast("train-101")
        assert (found["basis"], found["jobs"], found["probability"]) == ("Similar", 20, 0.8)
        assert instant(world.loop.now) < found["interval"]["latest"] < instant(world.loop.now + 2000)
        assert found["first"] == found["interval"]
        assert queue.forecast("train-100") == {}
        await asyncio.sleep(100.0)
        assert len(queue.status_writes) == 1
        world.call("DELETE", f"{JOBS}/train-100")
        await asyncio.sleep(150.0)
        assert world.condition("train-101", "Admitted")["status"] == "True"
        assert queue.forecast("train-101") == {}
        assert queue.calibration()["outcomes"] == 1
        version = world.call("GET", HISTORY)["metadata"]["resourceVersion"]
        world.replicas[0].kill()
        world.replicas[0].start()
        await asyncio.sleep(700.0)
        assert world.call("GET", HISTORY)["metadata"]["resourceVersion"] == version

    world.run(story)


@pytest.mark.slow
def test_a_job_that_waits_longer_than_expected_counts_once_across_a_restart() -> None:
    queue = Queue(ended=20)
    world = queue.world

    async def story() -> None:
        await queue.two_jobs()
        uid = world.job("train-101")["metadata"]["uid"]
        assert queue.forecast("train-101")
        await asyncio.sleep(4000.0)
        assert queue.calibration()["outcomes"] == 1
        assert queue.calibration().get("held", 0) == 0
        assert queue.calibration()["late"] == [uid]
        world.replicas[0].kill()
        world.replicas[0].start()
        await asyncio.sleep(700.0)
        assert queue.calibration()["outcomes"] == 1
        world.call("DELETE", f"{JOBS}/train-100")
        await asyncio.sleep(200.0)
        assert queue.forecast("train-101") == {}
        assert queue.calibration()["outcomes"] == 1
        assert "late" not in queue.calibration()

    world.run(story)


@pytest.mark.slow
def test_a_new_leader_estimates_nothing_before_it_has_read_the_history() -> None:
    """Otherwise it writes that too few jobs have ended, and keeps to that for half a minute (13.2)."""
    queue = Queue(ended=20, fates=LateHistory)
    world = queue.world

    async def story() -> None:
        world.add_job("train-100", 2)
        await asyncio.sleep(60.0)
        world.replicas[0].kill()
        for number in range(18):  # only the history knows them
            world.call("DELETE", f"{JOBS}/train-{number}")
        world.add_job("train-101", 2)
        world.replicas[0].start()
        await asyncio.sleep(FIRST_S)
        assert queue.forecast("train-101").get("basis") == "Similar"
        assert len(queue.status_writes) == 1

    world.run(story)


@pytest.mark.slow
def test_without_enough_ended_jobs_the_status_says_so_once() -> None:
    queue = Queue(ended=3)

    async def story() -> None:
        await queue.two_jobs()
        await asyncio.sleep(700.0)
        found = queue.forecast("train-101")
        assert (found["unknown"], found["jobs"]) == ("TooFewJobs", 3)
        assert "interval" not in found
        assert len(queue.status_writes) == 1

    queue.world.run(story)


def test_time_limits_bound_the_start_without_any_history() -> None:
    queue = Queue(ended=0)
    world = queue.world

    async def story() -> None:
        world.add_job("train-100", 2, timeLimitSeconds=7200)
        await asyncio.sleep(20.0)
        name = "train-100"
        status = {"startTime": instant(world.loop.now)}
        world.call("PATCH", f"{JOBS}/{name}/status", {"status": status})
        world.add_job("train-101", 2)
        await asyncio.sleep(FIRST_S)
        found = queue.forecast("train-101")
        assert found["basis"] == "Limits"
        assert "first" not in found
        assert found["interval"]["latest"] <= instant(world.loop.now + 7300)

    world.run(story)


@pytest.mark.slow
def test_an_older_definition_of_jobs_that_drops_the_field_leads_to_one_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = Queue(ended=20)
    found = queue.world.call("GET", DEFINITION)
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["startForecast"]
    queue.world.call("PUT", DEFINITION, found)

    async def story() -> None:
        with caplog.at_level(logging.WARNING):
            await queue.two_jobs()
            await asyncio.sleep(600.0)
        assert queue.forecast("train-101") == {}
        assert len(queue.status_writes) == 1
        assert len([each for each in caplog.messages if "startForecast" in each]) == 1

    queue.world.run(story)
