"""Jobs run on reserved nodes, and give them back with their work saved when the job in front can start."""

from __future__ import annotations

import pytest

from muster.api.training_job import TrainingJob
from tests.scenarios.backfill.conftest import PAUSE, Jobs, state, uninterrupted
from tests.support.anyserver import BY_SCHEDULER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_backfilled_job_says_so_saves_when_asked_and_resumes_in_its_old_place(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    await jobs.wide_waits()
    await jobs.train("small", 2, restartable=True)
    status = await jobs.backfilled_for("small", "wide")
    assert (state(status).asked, status.preemptions) == (0, 0)
    wide = jobs.full_name("wide")
    assert f"on nodes reserved for {wide}, may be asked to leave" in await jobs.command(capsys, "status", "small")
    assert f"for {wide}" in await jobs.command(capsys, "list")
    event = await jobs.event("small", "Backfilled")
    assert event.message.startswith(f"uses nodes that are reserved for {wide}")
    await jobs.wrote("small", "flag-1")
    # Kubernetes notes whole seconds; of jobs of one second, the first by name comes first.
    await jobs.hold("third", 3)
    await jobs.waits("third", "BehindInQueue")
    jobs.end("long")
    await jobs.wrote("small", "asked-1")
    status = await jobs.left("small")
    assert status.last_checkpoint is not None
    assert status.last_checkpoint.step == PAUSE, "it saved when it was asked"
    assert (state(status).asked, state(status).seconds_lost, state(status).gang) == (1, 0.0, "")
    assert (status.attempt, status.faults) == (2, ())
    assert status.restarts is None or status.restarts.total == 0
    event = await jobs.event("small", "AskedToLeave")
    assert wide in event.message
    await jobs.arena.phase("wide", "Succeeded")
    assert {pod.spec.node_name for pod in await jobs.arena.pods("wide")} == {node.name for node in jobs.arena.nodes}
    status = await jobs.arena.phase("small", "Running", 2)
    assert state(status).gang == ""
    assert (await jobs.arena.status("third")).start_time is None, "it is after the job that came back"
    assert await jobs.wrote("small", "began-2-0") == str(PAUSE)
    jobs.end("small")
    status = await jobs.arena.phase("small", "Succeeded", 2)
    assert jobs.log("small") == uninterrupted(), "every step was done once"
    assert not jobs.path("small", "flag-2").exists()
    assert (status.preemptions, state(status).asked) == (1, 1)
    assert "asked to leave 1 time, no work lost" in await jobs.command(capsys, "status", "small")


@BY_SCHEDULER
async def test_job_that_saved_a_checkpoint_is_backfilled_unless_it_says_that_it_cannot_restart(jobs: Jobs) -> None:
    """Neither says `restartable: true`. One of them runs on reserved nodes once it has saved a checkpoint."""
    client, namespace = jobs.arena.client, jobs.arena.namespace
    await jobs.train("saver", 1)
    await jobs.train("stiff", 1, restartable=False)
    for name in ("saver", "stiff"):
        await jobs.arena.reaches(name, lambda status: status.last_checkpoint is not None)
        await client.patch(TrainingJob, name, {"spec": {"suspend": True}}, namespace=namespace)
    for name in ("saver", "stiff"):
        await jobs.arena.phase(name, "Suspended")
    await jobs.wide_waits()
    await jobs.train("fresh", 1)
    for name in ("stiff", "fresh"):
        await client.patch(TrainingJob, name, {"spec": {"suspend": False}}, namespace=namespace)
        await jobs.waits(name, "BehindInQueue")
    await client.patch(TrainingJob, "saver", {"spec": {"suspend": False}}, namespace=namespace)
    await jobs.backfilled_for("saver", "wide")
    for name in ("stiff", "fresh"):
        status = await jobs.arena.status(name)
        assert (status.phase, status.backfill) == ("Pending", None)
