"""Issue 13.2: ended jobs are recorded once each, and a waiting job gets an estimate of its start from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from muster.api.run_history import RUN_HISTORY, RecordedRun, RunGroup, RunHistory, RunHistorySpec
from muster.kube.errors import NotFound
from muster.kube.objects.meta import ObjectMeta
from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

EARLIER = 12


async def history(arena: Arena) -> RunHistory | None:
    try:
        return await arena.client.get(RunHistory, RUN_HISTORY, arena.system)
    except NotFound:
        return None


async def recorded(arena: Arena) -> list[str]:
    found = await history(arena)
    return [run.uid for group in found.spec.groups for run in group.runs] if found is not None else []


async def ended_earlier(arena: Arena) -> None:
    """The history of a controller that ran here before: jobs like those of this test."""
    now = datetime.now(UTC).replace(microsecond=0)
    runs = tuple(
        RecordedRun(
            uid=f"earlier-{number}",
            run_seconds=600.0 + 60 * number,
            end_time=now - timedelta(hours=EARLIER - number),
            completed=True,
        )
        for number in range(EARLIER)
    )
    group = RunGroup(namespace=arena.namespace, pattern="train", image="none", nodes=3, gpus=4, runs=runs)
    metadata = ObjectMeta(name=RUN_HISTORY, namespace=arena.system)
    await arena.client.create(RunHistory(metadata=metadata, spec=RunHistorySpec(groups=(group,))))


async def run_short(arena: Arena, name: str) -> str:
    """A job that succeeds; returns its UID once it is recorded."""
    await arena.submit(name, "print('done')", replicas=1)
    await arena.phase(name, "Succeeded")
    uid = (await arena.job(name)).uid

    async def is_recorded() -> bool:
        return uid in await recorded(arena)

    await until(f"{name} is recorded", is_recorded)
    return uid


async def test_13_2_ended_jobs_are_recorded_once_and_a_waiting_job_gets_an_interval(arena: Arena) -> None:
    arena.controllers[-1].terminate()
    await ended_earlier(arena)
    arena.control()
    first = await run_short(arena, "short-1")
    arena.controllers[-1].kill()
    arena.control()
    second = await run_short(arena, "short-2")
    uids = await recorded(arena)
    assert sorted(uids) == sorted([*(f"earlier-{number}" for number in range(EARLIER)), first, second])

    await arena.submit("train-1", "import time; time.sleep(3600)", replicas=3)
    await arena.phase("train-1", "Running")
    before = await history(arena)
    assert before is not None
    await arena.submit("train-2", "print('done')", replicas=3)
    status = await arena.reaches("train-2", lambda status: status.start_forecast is not None)
    forecast = status.start_forecast
    assert forecast is not None
    assert forecast.interval is not None
    assert forecast.interval.latest is not None
    assert forecast.interval == forecast.first
    assert (forecast.basis, forecast.probability) == ("Similar", 0.8)
    assert forecast.jobs in (EARLIER, EARLIER + 1), "the running job may count"
    assert forecast.interval.earliest < forecast.interval.latest < datetime.now(UTC) + timedelta(hours=3)
    after = await history(arena)
    assert after is not None
    assert after.metadata.resource_version == before.metadata.resource_version, "nothing new, and no write"

    arena.controllers[-1].terminate()
    await arena.client.delete(RunHistory, RUN_HISTORY, namespace=arena.system)
    arena.control()

    async def begins_again() -> bool:
        return sorted(await recorded(arena)) == sorted([first, second])

    await until("a new history begins with the jobs that exist", begins_again)
    assert (await arena.status("train-2")).start_forecast == forecast
