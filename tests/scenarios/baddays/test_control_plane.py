"""Bad days of the control plane: the controller dies, the API server is away, tokens are refused, clocks jump."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.baddays.conftest import BEGIN, BadDay, lives, stays, stopped
from tests.support.anyserver import BY_CONTROLLER
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@BY_CONTROLLER
async def test_a_controller_that_is_killed_is_missed_by_no_rank_and_checkpoints_go_on(bad: BadDay) -> None:
    job = await bad.train()
    await job.runs(1)
    before = (await job.reaches(lambda status: status.last_checkpoint)).last_checkpoint.step
    pids = [job.pid(1, rank) for rank in (0, 1)]
    bad.arena.controllers[-1].kill()
    bad.arena.control()
    await job.reaches(lambda status: status.last_checkpoint.step > before + 10 and status.phase == "Running")
    assert [job.pid(1, rank) for rank in (0, 1)] == pids
    assert all(lives(pid) for pid in pids)
    status = await job.ends(1)
    assert (status.restarts, status.faults) == (None, ())


@BY_CONTROLLER
async def test_a_controller_killed_between_fault_and_restart_is_followed_by_one_that_ends_it(bad: BadDay) -> None:
    job = await bad.train(stopGraceSeconds=3)
    await job.runs(1)
    os.kill(job.pid(1, 1), signal.SIGKILL)
    await job.reaches(lambda status: status.attempt == 2)
    bad.arena.controllers[-1].kill()
    bad.arena.control()
    await job.runs(2)
    status = await job.ends(2)
    assert status.restarts.total == 1
    assert [(fault.slot, fault.rule) for fault in status.faults] == [(1, "rank-killed")]


AWAY_S = 60.0

SAVING = f"""{BEGIN}
        muster.report(step=step, total_steps=100000)
        if step % 10 == 0:
            (folder / ("saving-" + mine)).write_text(str(step))
            wait_s = 600 if (folder / "refused").exists() else 10
            try:
                muster.save_checkpoint(step, save, deadline_s=wait_s)
            except muster.ControllerUnavailable as error:
                (folder / "refused").write_text("%d: %s" % (step, error))
        (folder / ("writing-" + mine)).write_text(str(step))
        (folder / ("writing-" + mine)).rename(folder / ("step-" + mine))
        time.sleep(0.05)
"""


async def test_while_the_api_server_is_away_for_a_minute_ranks_go_on_and_are_caught_up_with(bad: BadDay) -> None:
    """A checkpoint that may not wait fails; one that may waits, and is confirmed when the API server is back."""
    job = await bad.train(SAVING)
    await job.runs(1)
    await job.reaches(lambda status: status.last_checkpoint and status.progress)
    controller = bad.arena.controllers[-1]
    terms = controller.log.read_text().count("leading: ")
    pids = [job.pid(1, rank) for rank in (0, 1)]
    uids = {slot: pod.uid for slot, pod in (await job.pods()).items()}

    def number(name: str) -> int:
        return int((job.folder / name).read_text())

    async def same() -> bool:
        return all(lives(pid) for pid in pids) and controller.popen.poll() is None

    bad.server.stop()
    try:
        await stays("the ranks and the controller live", same, AWAY_S)
        assert "lost the lease" in controller.log.read_text()
        refused_at, _, why = (job.folder / "refused").read_text().partition(": ")
        assert why.startswith("the checkpoint was not confirmed within 10 s: ")
        assert number("step-1-0") >= int(refused_at)
        step = number("step-1-1")
        await until("the other rank continues", lambda: number("step-1-1") > step)
        waiting = number("saving-1-0")
        assert waiting > int(refused_at)
    finally:
        bad.server.start()
    await job.reaches(lambda status: status.last_checkpoint.step >= waiting and status.phase == "Running")
    assert (await job.saved(1)) >= waiting
    await until("training continues behind it", lambda: number("step-1-0") > waiting)
    assert controller.log.read_text().count("leading: ") > terms
    status = await job.ends(1)
    assert (status.restarts, status.faults) == (None, ())
    assert [job.pid(1, rank) for rank in (0, 1)] == pids
    assert not list(job.folder.glob("pid-2-*"))
    assert {slot: pod.uid for slot, pod in (await job.pods()).items()} == uids


@BY_CONTROLLER
async def test_a_rank_that_fails_while_the_api_server_is_away_restarts_the_job_when_it_is_back(bad: BadDay) -> None:
    job = await bad.train()
    await job.runs(1)
    bad.server.stop()
    try:
        os.kill(job.pid(1, 0), signal.SIGKILL)

        async def dead() -> bool:
            return not lives(job.pid(1, 0))

        await until("the rank is dead", dead)
    finally:
        bad.server.start()
    await job.runs(2)
    status = await job.ends(2)
    assert [(fault.slot, fault.rule) for fault in status.faults] == [(0, "rank-killed")]
    assert status.slots_kept == 2


async def test_a_token_that_is_refused_is_read_again(bad: BadDay) -> None:
    job = await bad.train()
    await job.runs(1)
    pod = (await job.pods())[1]
    node = await job.node_of(1)

    async def refused() -> bool:
        return any(b"HTTP 401" in log.read_bytes() for log in node.state.rglob("*.log"))

    with stopped(node.process.popen.pid):  # the kubelet, which would write the token again
        for token in node.state.rglob("token"):
            if pod.uid in str(token) and token.is_file():
                token.write_text("not-a-token")
        await until("the supervisor was refused", refused, 30)
    status = await job.ends(1)
    assert status.faults == ()


FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.mark.skipif(not FAKETIME.exists(), reason=f"no {FAKETIME}: apt-get install faketime")
@pytest.mark.parametrize("shift", ["+3600", "-3600"])
@BY_CONTROLLER
async def test_the_controllers_time_of_day_may_be_set_while_a_job_runs(bad: BadDay, shift: str) -> None:
    bad.arena.controllers[-1].terminate()
    offset = bad.arena.folder / f"offset{shift}"
    offset.write_text("+0")
    controller = bad.arena.control(
        "--lease-duration=30",  # much less than the shift, and more than a busy machine may take to renew it
        env={
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
    )
    try:
        job = await bad.train(timeLimitSeconds=1000)
        await job.runs(1)
        offset.write_text(shift)
        before = (await job.reaches(lambda status: status.last_checkpoint)).last_checkpoint.step
        await job.reaches(lambda status: status.last_checkpoint.step > before + 60)
        assert "lost the lease" not in controller.log.read_text()
        os.kill(job.pid(1, 1), signal.SIGKILL)  # what it decides is right as well
        await job.runs(2)
        status = await job.ends(2)
        assert [fault.rule for fault in status.faults] == ["rank-killed"]
    finally:
        controller.terminate()
