"""Bad days of backfilled jobs: the controller is killed, ranks do not listen or crash, the job in front changes."""

from __future__ import annotations

import os
import signal

import pytest

from muster.api.training_job import TrainingJob
from tests.scenarios.backfill.conftest import PAUSE, Jobs, state, uninterrupted
from tests.support.anyserver import BY_RANKS, BY_SCHEDULER
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_new_leader_continues_after_the_controller_was_killed_between_asking_and_placing(jobs: Jobs) -> None:
    await jobs.wide_waits()
    await jobs.train("small", 2, restartable=True, saves_late=True, stopGraceSeconds=120)
    await jobs.backfilled_for("small", "wide")
    await jobs.arena.reaches("small", lambda status: status.progress and status.progress.step == PAUSE)
    jobs.end("long")
    await jobs.asked("small")
    jobs.arena.controllers[-1].kill()
    jobs.path("small", "saves").touch()
    jobs.arena.control()
    status = await jobs.left("small")
    assert (state(status).asked, state(status).seconds_lost) == (1, 0.0)
    assert status.restarts is None or status.restarts.total == 0
    await jobs.arena.phase("wide", "Succeeded")
    await jobs.arena.phase("small", "Running", 2)
    jobs.end("small")
    status = await jobs.arena.phase("small", "Succeeded", 2)
    assert (status.preemptions, state(status).asked) == (1, 1)
    assert jobs.log("small") == uninterrupted()


@BY_RANKS
async def test_jobs_that_do_not_listen_or_crash_when_asked_delay_the_job_in_front_by_their_grace_only(
    jobs: Jobs,
) -> None:
    await jobs.wide_waits()
    await jobs.train("deaf", 1, restartable=True, every=0, listens=False, stopGraceSeconds=4)
    await jobs.train("frail", 1, restartable=True, saves_late=True)
    for name in ("deaf", "frail"):
        await jobs.backfilled_for(name, "wide")
        await jobs.arena.reaches(name, lambda status: status.progress and status.progress.step == PAUSE)
    jobs.end("long")
    await jobs.wrote("frail", "asked-1")
    os.kill(int(await jobs.wrote("frail", "pid-1-0")), signal.SIGKILL)
    for name in ("deaf", "frail"):
        status = await jobs.left(name)
        assert (state(status).asked, status.faults) == (1, ())
        assert status.restarts is None or status.restarts.total == 0
        assert state(status).seconds_lost > 0
    await jobs.arena.phase("wide", "Succeeded")
    jobs.end("deaf", "frail")
    await jobs.arena.phase("frail", "Succeeded", 2)
    await jobs.arena.phase("deaf", "Succeeded", 2)
    assert await jobs.wrote("frail", "began-2-0") == "10", "from its last checkpoint"
    assert await jobs.wrote("deaf", "began-2-0") == "0", "it never saved"


@BY_SCHEDULER
async def test_job_in_front_is_deleted_and_backfilled_job_runs_on_unasked(jobs: Jobs) -> None:
    await jobs.wide_waits()
    await jobs.train("small", 2, restartable=True)
    await jobs.backfilled_for("small", "wide")
    await jobs.arena.client.delete(TrainingJob, "wide", namespace=jobs.arena.namespace)

    async def gone() -> bool:
        return not await jobs.arena.pods("wide")

    await until("its pods are gone, which would use the nodes of the first job", gone)
    jobs.end("long")
    await jobs.arena.phase("long", "Succeeded")
    await jobs.arena.reaches("small", lambda status: state(status).gang == "")
    jobs.end("small")
    status = await jobs.arena.phase("small", "Succeeded", 1)
    assert (status.preemptions, state(status).asked) == (0, 0)
    assert jobs.log("small") == uninterrupted()
