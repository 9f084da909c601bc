"""Issue 11.3: a job that stops to report is shown as stalled, and so is a rank that does not run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from muster.kube.objects.core import Event
from muster.kube.objects.pod import Pod
from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import rank_pid
from tests.support.anyserver import BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STOPPING = """
    import os, pathlib, time, traceback
    import muster
    folder = pathlib.Path({folder!r})
    (folder / ("pid-%d-%d" % (muster.attempt(), muster.rank()))).write_text(str(os.getpid()))
    if muster.rank() == 1:
        try:
            raise ValueError("no such batch")
        except ValueError:
            traceback.print_exc()
        (folder / "printed").touch()
    while not (folder / "printed").exists():
        time.sleep(0.05)
    step = 5
    if muster.attempt() == 1:
        muster.report(step=step, total_steps=1000)
    while not (folder / "done").exists():
        if (folder / "go").exists():
            step += 1
            muster.report(step=step, total_steps=1000)
        time.sleep(0.05)
"""
"""The first attempt reports one step. Another one has no limit, as it reports none."""


async def stacks(arena: Arena, *arguments: str) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster.cli.main", "stacks", *arguments, "-o", "json", "-n", arena.namespace,
        "--kubeconfig", str(arena.server.kubeconfig), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    ranks: list[dict[str, Any]] = json.loads(out)["ranks"]
    return ranks


async def reasons(arena: Arena) -> list[str]:
    return [event.reason for event in (await arena.client.list(Event, arena.namespace)).items]


@BY_RANKS
async def test_a_stall_and_a_stopped_rank_are_shown_until_they_are_over(arena: Arena) -> None:
    stall = {"afterSeconds": 6, "stepTimes": 1}  # so that the traceback, which is sent within a second or two, is there
    await arena.submit("train", STOPPING.format(folder=str(arena.folder)), stall=stall)
    status = await arena.reaches("train", lambda status: status.stall)
    assert status.stall is not None
    assert (status.phase, status.attempt, status.stall.attempt, status.stall.step) == ("Running", 1, 1, 5)
    assert status.stall.message.startswith("no step for ")
    assert status.stall.message.endswith("\nValueError: no such batch")
    assert "rank 1 printed a traceback:" in status.stall.message
    (pod, *_) = await arena.pods("train")
    log = Pod.RESOURCE.path(pod.namespace, pod.name, "log")

    async def stacks_in_log() -> bool:
        return b"stack of rank" in await arena.client.request("GET", log, params={"container": "worker"})

    await until("each node has logged the stacks of its ranks", stacks_in_log)
    found = await stacks(arena, "train")
    assert [(each["rank"], each["source"], each["why"]) for each in found] == [(0, "handler", ""), (1, "handler", "")]
    assert all("in <module>" in each["threads"][0][-1] for each in found)
    assert [each["rank"] for each in await stacks(arena, "train", "--rank", "1")] == [1]
    os.kill(rank_pid(arena, 1, 1), signal.SIGSTOP)
    status = await arena.reaches("train", lambda status: status.idle_ranks)
    (idle,) = status.idle_ranks
    assert (idle.rank, idle.state) == (1, "stopped")
    _, stopped = await stacks(arena, "train")
    assert "the process is stopped" in stopped["why"]
    assert stopped["threads"]
    os.kill(rank_pid(arena, 1, 1), signal.SIGCONT)
    (arena.folder / "go").touch()
    await arena.reaches("train", lambda status: status.stall is None and not status.idle_ranks)
    wanted = {"Stalled", "StallEnded", "RankIdle", "RankRuns"}

    async def said() -> bool:
        return wanted <= set(await reasons(arena))

    await until("events say so", said)
    (arena.folder / "done").touch()
    assert (await arena.phase("train", "Succeeded", 1)).restarts is None


@BY_RANKS
async def test_by_the_jobs_own_policy_a_stall_ends_the_attempt(arena: Arena) -> None:
    stall = {"afterSeconds": 3, "stepTimes": 1, "action": "Restart"}
    await arena.submit("train", STOPPING.format(folder=str(arena.folder)), stall=stall)
    status = await arena.phase("train", "Running", 2)
    (fault,) = status.faults
    assert (fault.rule, fault.cause, fault.attempt, fault.step, fault.slots) == ("stalled", "unknown", 1, 5, 0)
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 2)
    assert status.restarts is not None
    assert (status.restarts.unknown, status.restarts.total) == (1, 1)
