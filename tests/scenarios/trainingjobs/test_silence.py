"""A supervisor that falls silent although all is well with its node, in a cluster without a spare one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.anyserver import BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TRAIN = """
    import os, pathlib, time
    folder = pathlib.Path({folder!r})
    (folder / ("pid-%s-%s" % (os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]))).write_text(str(os.getpid()))
    while not (folder / "done").exists():
        time.sleep(0.05)
"""
BACK_S = 60.0


def supervisor_of(pid: int) -> int:
    """The supervisor above a rank."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"run" in words and any(word.endswith(b"supervisor.py") for word in words):
            return pid
    raise AssertionError("no supervisor above it")


@BY_RANKS
async def test_a_job_that_fills_all_nodes_comes_back_from_a_wrong_alarm(arena: Arena) -> None:
    await arena.submit("train", TRAIN.format(folder=str(arena.folder)), replicas=len(arena.nodes))
    await arena.phase("train", "Running", 1)
    file = arena.folder / "pid-1-1"

    async def written() -> bool:
        return file.exists() and bool(file.read_text())

    await until("rank 1 runs", written)
    frozen = supervisor_of(int(file.read_text()))
    os.kill(frozen, signal.SIGSTOP)
    try:
        status = await arena.reaches("train", lambda status: status.attempt == 2)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert status.faults[-1].slot == 1
    await arena.reaches("train", lambda status: (status.phase, status.attempt) == ("Running", 2), BACK_S)
    assert {pod.spec.node_name for pod in await arena.pods("train")} == {node.name for node in arena.nodes}
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)
