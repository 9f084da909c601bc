"""Jobs from submission to their end, through what happens to them on the way."""

from __future__ import annotations

import os
import signal

import pytest

from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.anyserver import BY_CONTROLLER, BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

QUICK = """
    import os
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""

TRAIN = """
    import os, pathlib, time
    folder = pathlib.Path({folder!r})
    (folder / ("pid-%s-%s" % (os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]))).write_text(str(os.getpid()))
    while not (folder / "done").exists():
        time.sleep(0.05)
"""


def train(arena: Arena) -> str:
    return TRAIN.format(folder=str(arena.folder))


def rank_pid(arena: Arena, attempt: int, rank: int) -> int:
    return int((arena.folder / f"pid-{attempt}-{rank}").read_text())


async def test_a_job_runs_to_its_end(arena: Arena) -> None:
    await arena.submit("quick", QUICK)
    status = await arena.phase("quick", "Succeeded")
    assert (status.attempt, status.restarts) == (1, None)
    assert {condition.type: condition.status for condition in status.conditions} == {
        "Admitted": "True",
        "Complete": "True",
        "Running": "False",
    }


@BY_RANKS
async def test_a_failing_program_is_charged_to_the_user_and_says_why(arena: Arena) -> None:
    await arena.submit("wrong", "raise ValueError('no such layer')", backoffLimit=1)
    status = await arena.phase("wrong", "Failed")
    assert status.restarts is not None
    assert status.restarts.user == 2
    assert "no such layer" in status.message
    assert "backoffLimit 1" in status.message


@BY_RANKS
async def test_a_killed_rank_restarts_in_place(arena: Arena) -> None:
    await arena.submit("train", train(arena))
    await arena.phase("train", "Running", 1)
    before = {pod.uid for pod in await arena.pods("train")}
    await until_written(arena, 1)
    os.kill(rank_pid(arena, 1, 1), signal.SIGKILL)
    status = await arena.phase("train", "Running", 2)
    assert {pod.uid for pod in await arena.pods("train")} == before
    assert status.faults[-1].rule == "rank-killed"
    assert status.restarts is not None
    assert (status.restarts.user, status.restarts.unknown) == (0, 1)
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)


async def test_a_lost_node_costs_one_slot_and_not_the_user_11789(arena: Arena) -> None:
    """Kueue: each replaced node uses up backoffLimit. Ours: with a limit of 0 the job continues, uncharged."""
    await arena.submit("train", train(arena), backoffLimit=0, unknownLimit=0)
    await arena.phase("train", "Running", 1)
    await until_written(arena, 1)
    pods = {pod.metadata.labels["muster.dev/slot"]: pod for pod in await arena.pods("train")}
    lost = next(node for node in arena.nodes if node.name == pods["1"].spec.node_name)
    lost.lose()
    status = await arena.phase("train", "Running", 2)
    after = {pod.name: pod for pod in await arena.pods("train") if not pod.terminating}
    assert after["train-0-1"].uid == pods["0"].uid
    assert after["train-1-2"].spec.node_name not in ("", lost.name)
    assert status.restarts is not None
    assert (status.restarts.infrastructure, status.restarts.user, status.restarts.unknown) == (1, 0, 0)
    assert status.slots_kept == 1
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)


@BY_CONTROLLER
async def test_a_killed_controller_changes_nothing_for_what_runs(arena: Arena) -> None:
    await arena.submit("train", train(arena))
    await arena.phase("train", "Running", 1)
    await until_written(arena, 1)
    pids = {rank_pid(arena, 1, rank) for rank in (0, 1)}
    arena.controllers[-1].kill()
    arena.control()
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 1)
    assert status.restarts is None
    assert {rank_pid(arena, 1, rank) for rank in (0, 1)} == pids


async def until_written(arena: Arena, attempt: int) -> None:
    files = [arena.folder / f"pid-{attempt}-{rank}" for rank in (0, 1)]

    async def written() -> bool:
        return all(file.exists() and file.read_text() for file in files)

    await until("both ranks run", written)
