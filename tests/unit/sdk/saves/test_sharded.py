"""Sharded saves: each rank writes its shards, and rank 0 the manifest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.sdk.saves import manifest, parts
from tests.support.memorystore import Killed
from tests.unit.sdk.saves.conftest import BASE, Job, read, text


def as_rank(job: Job, rank: int, ranks: int = 3, attempt: int = 1) -> None:
    job.start(attempt, rank, ranks)


def save(job: Job, step: int, ranks: int, attempt: int = 1) -> None:
    """All ranks save, the last one first."""
    for rank in reversed(range(ranks)):
        as_rank(job, rank, ranks, attempt)
        muster.save_checkpoint(step, text(f"{step}/{rank}"), sharded=True)


def test_manifest_comes_after_the_parts_of_all_ranks(job: Job) -> None:
    for rank in (2, 1):
        as_rank(job, rank)
        assert muster.save_checkpoint(5, text(str(rank)), sharded=True) == muster.Checkpoint(
            f"{BASE}/step-00000005-attempt-1", 5
        )
    assert job.controller.confirmed == []
    as_rank(job, 0)
    muster.save_checkpoint(5, text("0"), sharded=True)
    assert [key.partition("/")[2] for key in job.objects()] == [
        "manifest.json", "parts/rank-00000.json", "parts/rank-00001.json", "parts/rank-00002.json",
        "rank-00000", "rank-00001", "rank-00002",
    ]  # fmt: skip
    assert job.controller.confirmed[0]["shards"] == 3


def test_each_rank_loads_its_own_shards_while_the_world_size_is_the_same(job: Job) -> None:
    save(job, 5, 3)
    for rank in range(3):
        as_rank(job, rank, 3, attempt=2)
        loaded = muster.load_checkpoint(read)
        assert loaded is not None
        assert loaded[0] == f"5/{rank}"
        assert job.controller.outcomes[-1]["bytesFrom"]["bucket"] == 3


def test_another_world_size_sees_the_shards_of_all_ranks_or_fetches_some(job: Job) -> None:
    save(job, 5, 3)
    as_rank(job, 0, 2, attempt=2)

    def everything(files: muster.CheckpointFiles) -> list[str]:
        return [Path(files.path, f"rank-{rank:05d}").read_text() for rank in range(3)]

    loaded = muster.load_checkpoint(everything)
    assert loaded is not None
    assert loaded[0] == ["5/0", "5/1", "5/2"]
    as_rank(job, 1, 2, attempt=3)
    chosen = muster.load_checkpoint(lambda files: (files.names, sorted(os.listdir(files.fetch(files.names[1:2])))))
    assert chosen is not None
    assert chosen[0] == (("rank-00000", "rank-00001", "rank-00002"), ["rank-00001"])


def test_skipped_samples_of_all_ranks_are_stored_once(job: Job) -> None:
    for rank, skipped in ((1, [[0, "b", "1"], [0, "a", "0"]]), (0, [[0, "a", "0"]])):
        as_rank(job, rank, 2)
        muster.save_checkpoint(5, text("x"), sharded=True, skipped=skipped)
    as_rank(job, 0, 1, attempt=2)
    loaded = muster.load_checkpoint(lambda files: files.skipped)
    assert loaded is not None
    assert loaded[0] == ([0, "a", "0"], [0, "b", "1"])


def test_missing_rank_is_named_at_the_deadline_and_the_earlier_checkpoint_stays(job: Job) -> None:
    save(job, 5, 3)
    for rank in (2, 0):
        as_rank(job, rank)
        if rank == 2:
            muster.save_checkpoint(6, text("x"), sharded=True)
    with pytest.raises(muster.CheckpointNotSaved, match=r"1 of 3 ranks .*\(ranks 1\)"):
        muster.save_checkpoint(6, text("x"), sharded=True, deadline_s=0.2)
    assert [each["step"] for each in job.controller.confirmed] == [5]
    assert "step-00000006-attempt-1/manifest.json" not in job.objects()


def test_rank_that_fails_is_reported_to_rank_0_at_once(job: Job) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    as_rank(job, 1, 2)
    with pytest.raises(muster.CheckpointNotSaved, match="MUSTER_SAVE_DIR"):
        muster.save_checkpoint(6, full, sharded=True)
    as_rank(job, 0, 2)
    with pytest.raises(muster.CheckpointNotSaved, match=r"rank 1 did not save its shards: .*No space left"):
        muster.save_checkpoint(6, text("x"), sharded=True)


def test_parts_of_another_save_of_the_same_step_are_not_mixed_in(job: Job) -> None:
    """The path is the same here, as in a run without Muster that was killed and started again."""
    as_rank(job, 1, 2)
    muster.save_checkpoint(6, text("old"), sharded=True)
    job.monkeypatch.setenv("MUSTER_JOB_UID", "uid-of-the-next-run")
    as_rank(job, 0, 2)
    with pytest.raises(muster.CheckpointNotSaved, match="ranks 1"):
        muster.save_checkpoint(6, text("new"), sharded=True, deadline_s=0.1)


def test_step_that_is_saved_again_gets_another_name_on_all_ranks(job: Job) -> None:
    as_rank(job, 1, 2)
    paths = [muster.save_checkpoint(6, text("x"), sharded=True) for _ in range(2)]
    as_rank(job, 0, 2)
    assert [muster.save_checkpoint(6, text("x"), sharded=True) for _ in range(2)] == paths
    assert [each["path"].rpartition("/")[2] for each in job.controller.confirmed] == [
        "step-00000006-attempt-1-1", "step-00000006-attempt-1",
    ]  # fmt: skip


def test_ranks_without_muster_need_a_word_for_the_run(job: Job) -> None:
    job.monkeypatch.delenv("MUSTER_URL")
    as_rank(job, 0, 2, attempt=0)
    with pytest.raises(ValueError, match="MUSTER_RUN_ID"):
        muster.save_checkpoint(6, text("x"), sharded=True)
    names = set()
    for run in ("one", "two"):
        job.monkeypatch.setenv("MUSTER_RUN_ID", run)
        for rank in (1, 0):
            as_rank(job, rank, 2, attempt=0)
            saved = muster.save_checkpoint(6, text(run), sharded=True)
            assert isinstance(saved, muster.Checkpoint)
            names.add(saved.path)
    assert len(names) == 2
    as_rank(job, 1, 2, attempt=0)
    with pytest.raises(ValueError, match="agree="):
        muster.load_checkpoint(read)
    loaded = muster.load_checkpoint(read, agree=lambda ok: ok)
    assert loaded is not None
    assert loaded[1].path in names


def test_ranks_without_muster_all_fall_back_if_another_rank_failed(job: Job) -> None:
    job.monkeypatch.delenv("MUSTER_URL")
    as_rank(job, 0, 1, attempt=0)
    for step in (1, 2):
        muster.save_checkpoint(step, text(str(step)))
    as_rank(job, 0, 2, attempt=0)
    answers = iter([False, True])
    loaded = muster.load_checkpoint(read, agree=lambda ok: ok and next(answers))
    assert loaded is not None
    assert loaded[0] == "1"
    with pytest.raises(muster.NoGoodCheckpoint, match="none of 2 checkpoints"):
        muster.load_checkpoint(read, agree=lambda ok: False)


def test_part_of_a_rank_that_was_killed_is_never_complete(job: Job) -> None:
    as_rank(job, 1, 2)
    job.bucket.kill_after(0)
    with pytest.raises(Killed):
        muster.save_checkpoint(6, text("x"), sharded=True)
    job.bucket.revive()
    as_rank(job, 0, 2)
    with pytest.raises(muster.CheckpointNotSaved):
        muster.save_checkpoint(6, text("x"), sharded=True, deadline_s=0.1)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 2}', b"\xff"])
def test_object_that_is_not_a_part_is_ignored(data: bytes) -> None:
    assert parts.parse(data) is None


PROGRAM = """
import os, sys
import muster
step = int(sys.argv[1])
def write(path):
    os.makedirs(path)
    open(os.path.join(path, "weights"), "w").write(f"{step}/{muster.rank()}")
print(muster.save_checkpoint(step, write, sharded=True, deadline_s=60))
"""


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    env.update(MUSTER_CHECKPOINT_DIR=str(tmp_path / "ckpt"), MUSTER_RUN_ID="one", WORLD_SIZE="2")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "7"], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0] == said[1]
    (name,) = (each for each in os.listdir(tmp_path / "ckpt") if each != ".muster")
    path = tmp_path / "ckpt" / name
    assert sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()) == [
        "rank-00000/weights", "rank-00001/weights",
    ]  # fmt: skip
    known = manifest.parse((tmp_path / "ckpt/.muster" / f"{name}.manifest.json").read_bytes())
    assert [(each.key, each.rank) for each in known.shards] == [("rank-00000/weights", 0), ("rank-00001/weights", 1)]
