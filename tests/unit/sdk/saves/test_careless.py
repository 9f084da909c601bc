"""Programs that save checkpoints carelessly: named pipes, odd names and steps, several threads at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import muster
from muster.sdk.saves.saving import Saving
from tests.unit.sdk.saves.conftest import Job, text

ODD = os.fsdecode(b"odd-\xff")


def use_folder(job: Job) -> None:
    job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(job.folder / "ckpt"))


def with_pipe(path: str) -> None:
    os.makedirs(path)
    Path(path, "model").write_text("m")
    os.mkfifo(f"{path}/pipe")


@pytest.mark.parametrize("sharded", [False, True])
def test_a_named_pipe_in_a_folder_does_not_hang_the_save(job: Job, sharded: bool) -> None:
    use_folder(job)
    saving = threading.Thread(
        target=muster.save_checkpoint, args=(4, with_pipe), kwargs={"sharded": sharded}, daemon=True
    )
    saving.start()
    saving.join(20)
    assert not saving.is_alive()
    assert [each["shards"] for each in job.controller.confirmed] == [1], "the pipe is left out of the checkpoint"


def test_file_that_cannot_be_copied_is_named(job: Job) -> None:
    use_folder(job)
    saving = muster.save_checkpoint(4, with_pipe, background=True)
    assert isinstance(saving, Saving)
    with pytest.raises(muster.CheckpointNotSaved, match=r"cannot be copied into .*/pipe. is a named pipe$"):
        saving.wait(20)


def test_a_file_name_that_is_not_utf_8_can_be_loaded_from_a_folder(job: Job) -> None:
    use_folder(job)

    def write(path: str) -> None:
        os.makedirs(path)
        Path(path, ODD).write_text("m")

    muster.save_checkpoint(4, write)
    job.start(2)
    loaded = muster.load_checkpoint(lambda files: os.listdir(files.path))
    assert loaded is not None
    assert loaded[0] == [ODD]


def test_a_file_name_that_is_not_utf_8_is_refused_by_a_store(job: Job) -> None:
    def write(path: str) -> None:
        os.makedirs(path)
        Path(path, ODD).write_text("m")

    with pytest.raises(muster.CheckpointNotSaved, match="not UTF-8: rename it"):
        muster.save_checkpoint(4, write)


@pytest.mark.parametrize("step", [-1, 2**63])
@pytest.mark.parametrize("in_folder", [True, False])
def test_a_step_that_could_not_be_loaded_again_is_refused(job: Job, step: int, in_folder: bool) -> None:
    if in_folder:
        use_folder(job)
    with pytest.raises(ValueError, match="must be from 0 to"):
        muster.save_checkpoint(step, text("x"))


@pytest.mark.parametrize("in_folder", [True, False])
def test_threads_that_save_the_same_step_do_not_mix_their_files(job: Job, in_folder: bool) -> None:
    if in_folder:
        use_folder(job)
    began = threading.Event()

    def slow(path: str) -> None:
        os.makedirs(path)
        began.set()
        other.join(0.5)  # without a fix the other thread now writes into the same folder
        for each in ("a", "b"):
            Path(path, each).write_text("slow")

    def quick(path: str) -> None:
        os.makedirs(path, exist_ok=True)
        for each in ("a", "b", "c"):
            Path(path, each).write_text("quick")

    def second() -> None:
        assert began.wait(20)
        muster.save_checkpoint(4, quick)

    other = threading.Thread(target=second, daemon=True)
    other.start()
    muster.save_checkpoint(4, slow)
    other.join(20)
    assert sorted(each["shards"] for each in job.controller.confirmed) == [2, 3]
    job.start(2)
    loaded = muster.load_checkpoint(
        lambda files: [Path(files.path, each).read_text() for each in sorted(os.listdir(files.path))]
    )
    assert loaded is not None
    assert loaded[0] == ["quick"] * 3


def test_the_upload_time_of_other_ranks_is_not_zero(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start(1, rank=1, ranks=2)
    put, job.bucket.before = job.bucket.before, lambda operation, key: threading.Event().wait(0.02)
    saving = muster.save_checkpoint(4, text("x"), sharded=True, background=True)
    assert isinstance(saving, Saving)
    saving.wait(20)
    job.bucket.before = put
    assert "the upload took 0.00 s" not in capsys.readouterr().err
