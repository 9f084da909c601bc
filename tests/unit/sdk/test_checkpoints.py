from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from muster.sdk import checkpoints


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MUSTER_URL", "MUSTER_ATTEMPT", "MUSTER_CHECKPOINT", "MUSTER_CHECKPOINT_STEP", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "ckpt"))
    monkeypatch.setattr(checkpoints, "_committed", None)
    return tmp_path / "ckpt"


def text(content: str) -> Callable[[str], object]:
    return lambda path: Path(path).write_text(content)


def restarted(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    monkeypatch.setattr(checkpoints, "_committed", None)
    monkeypatch.setenv("MUSTER_ATTEMPT", str(attempt))


def test_without_muster_the_newest_checkpoint_is_the_one_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert muster.last_checkpoint() is None
    for step in (9, 10, 100):
        muster.save_checkpoint(step, text(str(step)))
    monkeypatch.setattr(checkpoints, "_committed", None)  # as a new process sees it
    last = muster.last_checkpoint()
    assert last is not None
    assert (last.step, Path(last.path).read_text()) == (100, "100")


def test_under_muster_it_is_the_one_the_controller_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    muster.save_checkpoint(9, text("written, never confirmed"))
    restarted(monkeypatch, 2)
    assert muster.last_checkpoint() is None
    monkeypatch.setenv("MUSTER_CHECKPOINT", "/ckpt/step-40")
    monkeypatch.setenv("MUSTER_CHECKPOINT_STEP", "40")
    assert muster.last_checkpoint() == muster.Checkpoint("/ckpt/step-40", 40)


def test_a_writer_that_fails_leaves_nothing_and_the_last_one_stands(folder: Path) -> None:
    good = muster.save_checkpoint(1, text("good"))

    def broken(path: str) -> None:
        os.mkdir(path)
        Path(path, "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        muster.save_checkpoint(2, broken)
    assert muster.last_checkpoint() == good
    assert os.listdir(folder) == ["step-00000001-attempt-0"]


def test_a_folder_is_a_checkpoint_too(folder: Path) -> None:
    def write(path: str) -> None:
        os.makedirs(f"{path}/shards")
        Path(path, "shards", "0").write_text("x")

    saved = muster.save_checkpoint(3, write)
    assert saved is not None
    assert Path(saved.path, "shards", "0").read_text() == "x"
    again = muster.save_checkpoint(3, write)
    assert again is not None
    assert again.path != saved.path
    assert muster.last_checkpoint() == again


def test_old_ones_go_but_never_the_one_this_attempt_began_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = muster.save_checkpoint(1, text("1"))
    assert first is not None
    restarted(monkeypatch, 3)
    monkeypatch.setenv("MUSTER_CHECKPOINT", first.path)
    monkeypatch.setenv("MUSTER_CHECKPOINT_STEP", "1")
    for name in ("step-00000009-attempt-2", ".writing-step-00000009-attempt-2-77", "step-00000001-attempt-4", "notes"):
        (folder / name).write_text("x")
    for step in (2, 3, 4):
        muster.save_checkpoint(step, text(str(step)))
    assert sorted(os.listdir(folder)) == [
        "notes",
        "step-00000001-attempt-0",  # begun from
        "step-00000001-attempt-4",  # a newer attempt's
        "step-00000003-attempt-3",
        "step-00000004-attempt-3",
    ]


def test_only_rank_0_saves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert muster.save_checkpoint(1, text("x")) is None
    assert not folder.exists()


def test_a_missing_folder_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CHECKPOINT_DIR")
    assert muster.last_checkpoint() is None
    with pytest.raises(RuntimeError, match=r"--checkpoint DIR.*MUSTER_CHECKPOINT_DIR"):
        muster.save_checkpoint(1, text("x"))
