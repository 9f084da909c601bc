"""Ranks agree on a checkpoint through the controller, over TLS, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.sdk.saves import own
from tests.support.supervisor_stub import StubController

PROGRAM = """
import json, pathlib, sys
import muster
def read(files):
    if len(files.names) == 1:
        return pathlib.Path(files.path).read_text()
    name = files.names[muster.rank()]  # of several files each rank reads its own
    return pathlib.Path(files.fetch([name]), name).read_text()
print("ready", flush=True)
sys.stdin.readline()
try:
    loaded = muster.load_checkpoint(read, deadline_s=float(sys.argv[1]))
    print(json.dumps(loaded and [loaded[0], loaded[1].step, muster.last_checkpoint().step]))
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        controller.attempt = 3
        yield controller


def save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[muster.Checkpoint]:
    """Three checkpoints, newest first."""
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(folder))
    monkeypatch.setattr(own, "_committed", None)
    saved = []
    for step in (1, 2, 3):

        def write(path: str, step: int = step) -> None:
            Path(path).write_text(f"step {step}")

        one = muster.save_checkpoint(step, write, keep=9)
        assert isinstance(one, muster.Checkpoint)
        saved.insert(0, one)
    return saved


def overwrite(checkpoint: muster.Checkpoint, content: str) -> None:
    Path(checkpoint.path).write_text(content)


def left_in(folder: Path) -> list[str]:
    return [str(each) for each in folder.glob("restore-*/*/*")]


async def ranks(
    stub: StubController, saved: list[muster.Checkpoint], nodes: int = 2, deadline_s: float = 30, absent: int = -1
) -> list[Any]:
    """What each of two ranks on each node prints. All have started before one loads: deadlines are not for that."""
    stub.older = [{"path": each.path, "step": each.step, "manifest": ""} for each in saved]
    running = []
    for node_rank in range(nodes):
        node = stub.node(node_rank)
        for local in range(2):
            rank = 2 * node_rank + local
            if rank == absent:
                continue
            env = {
                **node.env, "MUSTER_ATTEMPT": "3", "RANK": str(rank), "WORLD_SIZE": str(2 * nodes),
                "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2", "NODE_RANK": str(node_rank),
                "MUSTER_RESTORE_DIR": str(stub.folder / f"restore-{node_rank}"),
                "MUSTER_CHECKPOINT": saved[0].path if saved else "", "MUSTER_CHECKPOINT_STEP": "3",
            }  # fmt: skip
            running.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-c", PROGRAM, str(deadline_s), env=env, stdin=PIPE, stdout=PIPE
                )
            )
    for each in running:
        assert await each.stdout.readline() == b"ready\n"
    for each in running:
        each.stdin.write(b"go\n")
    return [json.loads((await each.communicate())[0]) for each in running]


@pytest.mark.slow
async def test_all_ranks_of_all_nodes_load_the_same_checkpoint(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    assert await ranks(stub, saved) == [["step 3", 3, 3]] * 4
    assert {(each["nodeRank"], each["ok"], each["ranks"]) for each in stub.restores} == {(0, True, 2), (1, True, 2)}
    assert [each for each in left_in(tmp_path) if "/load-" in each] == []


@pytest.mark.slow
async def test_damage_that_ranks_find_makes_all_of_them_load_an_older_checkpoint(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    overwrite(saved[0], "step X")  # of the same size
    os.unlink(saved[1].path)
    assert await ranks(stub, saved) == [["step 1", 1, 1]] * 4
    failed = {(each["path"], each["reason"]) for each in stub.restores if not each["ok"]}
    assert failed == {(saved[0].path, "Checksum"), (saved[1].path, "Missing")}


@pytest.mark.slow
async def test_damage_that_one_rank_finds_counts_for_its_node_and_for_all_others(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)

    def write(path: str) -> None:
        os.mkdir(path)
        for rank in range(4):
            Path(path, str(rank)).write_text("fine")

    newest = muster.save_checkpoint(4, write)
    assert isinstance(newest, muster.Checkpoint)
    overwrite(muster.Checkpoint(f"{newest.path}/3", 4), "torn")
    assert await ranks(stub, [newest, *saved]) == [["step 3", 3, 3]] * 4
    assert {(each["nodeRank"], each.get("reason")) for each in stub.restores if each["path"] == newest.path} == {
        (0, None), (1, "Checksum"),
    }  # fmt: skip


@pytest.mark.slow
async def test_job_whose_checkpoints_are_all_bad_does_not_start(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    for each in saved:
        overwrite(each, "")
    said = await ranks(stub, saved, nodes=1)
    assert [each.partition(":")[0] for each in said] == ["NoGoodCheckpoint"] * 2
    assert "no checkpoint is left" in said[0]


@pytest.mark.slow
async def test_rank_that_does_not_load_is_named_at_the_deadline(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    (said,) = await ranks(stub, saved, nodes=1, deadline_s=0.5, absent=1)
    assert said.startswith("TimeoutError: local rank 1 of this node did not call load_checkpoint")


@pytest.mark.slow
async def test_slow_node_is_waited_for_beyond_the_deadline(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers "wait" after half a second here. Each answer shows that the attempt still loads."""
    deadline_s = 4.0
    saved = save(tmp_path / "ckpt", monkeypatch)
    slow = stub.node(7)
    running = asyncio.create_task(ranks(stub, saved, nodes=1, deadline_s=deadline_s))
    await stub.until(lambda: len(stub.restores) > deadline_s / 0.5 + 1 or running.done(), "asked again and again")
    assert not running.done()
    stub.nodes = {token: node for token, node in stub.nodes.items() if node is not slow}
    assert await running == [["step 3", 3, 3]] * 2


@pytest.mark.slow
async def test_controller_that_is_away_is_waited_for_until_the_deadline(
    stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    await stub.away()
    said = await ranks(stub, saved, nodes=1, deadline_s=3)
    assert {each.partition(": the ranks did not agree")[0] for each in said} == {"ControllerUnavailable"}


@pytest.mark.slow
async def test_stale_attempt_stops(stub: StubController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save(tmp_path / "ckpt", monkeypatch)
    stub.attempt = 4
    said = await ranks(stub, saved, nodes=1)
    assert said == ["StaleAttempt: attempt 3 is over, the job is at attempt 4"] * 2
