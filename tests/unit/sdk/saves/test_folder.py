"""Checkpoints in a plain folder: layout and records as before, and a manifest that makes them verifiable."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.sdk import records
from muster.sdk.saves import manifest
from muster.sdk.saves.targets import shards_of
from tests.support.memorystore import Killed
from tests.unit.sdk.saves.conftest import Job, new_job, read, text

WRITES_MAX = 80


@pytest.fixture
def folder(job: Job) -> Path:
    """The job's folder; the controller knows no URL."""
    path = job.folder / "ckpt"
    job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(path))
    return path


def listed(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != records.FOLDER)


def tree(path: str) -> None:
    os.makedirs(f"{path}/optimizer")
    Path(path, "model").write_text("m")
    Path(path, "optimizer", "state").write_text("o")


def test_manifest_is_written_before_the_confirmation(job: Job, folder: Path) -> None:
    seen: list[dict[str, Any]] = []
    file = folder / ".muster/step-00000040-attempt-1.manifest.json"
    job.controller.before = lambda: seen.append(json.loads(file.read_bytes()))
    muster.save_checkpoint(40, tree, cursor="c")
    (said,) = seen
    assert [(each["key"], each["bytes"]) for each in said["shards"]] == [("model", 1), ("optimizer/state", 1)]
    assert said["cursor"] == "c"
    (report,) = job.controller.confirmed
    assert report == {
        "path": str(folder / "step-00000040-attempt-1"), "step": 40, "bytes": 2, "shards": 2,
        "manifest": manifest.digest(file.read_bytes()),
    }  # fmt: skip
    job.start(2)
    loaded = muster.load_checkpoint(lambda files: (files.path, files.cursor))
    assert loaded == ((report["path"], "c"), muster.Checkpoint(report["path"], 40))


@pytest.mark.parametrize(
    "options", [{}, {"sharded": True}, {"background": True}], ids=["plain", "sharded", "background"]
)
def test_power_loss_everything_is_flushed_before_the_confirmation(
    job: Job, folder: Path, options: dict[str, bool]
) -> None:
    flushed: set[int] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)
        real(handle)

    missing: list[str] = []

    def look() -> None:
        every = [folder, *folder.rglob("*")]
        missing.extend(str(each) for each in every if each.stat().st_ino not in flushed)

    job.controller.before = look
    job.monkeypatch.setattr(os, "fsync", fsync)
    saved = muster.save_checkpoint(1, tree, **options)  # type: ignore[arg-type]
    if isinstance(saved, muster.Saving):
        saved.wait(20)
    assert missing == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("model", "x", "Checksum"), ("model", "", "Size"), ("optimizer/state", None, "Missing"), (None, None, "Missing")],
)
def test_damaged_file_is_found(job: Job, folder: Path, name: str | None, content: str | None, reason: str) -> None:
    good = muster.save_checkpoint(1, tree)
    bad = muster.save_checkpoint(2, tree)
    assert isinstance(bad, muster.Checkpoint)
    if name is None:
        shutil.rmtree(bad.path)
    elif content is None:
        os.unlink(f"{bad.path}/{name}")
    else:
        Path(bad.path, name).write_text(content)
    job.start(2)
    loaded = muster.load_checkpoint(lambda files: files.path)
    assert loaded is not None
    assert loaded[1] == good
    assert job.controller.outcomes[0]["reason"] == reason


def test_manifest_that_the_controller_did_not_confirm_is_refused(job: Job, folder: Path) -> None:
    good = muster.save_checkpoint(1, text("one"))
    muster.save_checkpoint(2, text("two"))
    (folder / "step-00000002-attempt-1").write_text("six")
    first = (folder / ".muster/step-00000001-attempt-1.manifest.json").read_bytes()
    forged = manifest.parse(first)._replace(step=2, shards=shards_of(str(folder / "step-00000002-attempt-1"), 0))
    (folder / ".muster/step-00000002-attempt-1.manifest.json").write_bytes(manifest.encode(forged))
    job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded == ("one", good)
    assert job.controller.outcomes[0]["reason"] == "Manifest"


def test_folders_of_earlier_versions_have_no_manifest_and_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    monkeypatch.delenv("MUSTER_URL")
    job.start(0)
    for step in (1, 2, 3):
        muster.save_checkpoint(step, text(f"step {step}"), keep=9)
    for step in (2, 3):
        (folder / f".muster/step-0000000{step}-attempt-0.manifest.json").unlink()
    (folder / "step-00000003-attempt-0").write_text("torn")
    job.start(0)

    def parsed(files: muster.CheckpointFiles) -> int:
        return int(read(files).split()[1])

    loaded = muster.load_checkpoint(parsed)
    assert loaded is not None
    assert loaded[0] == 2
    job.start(0)
    (folder / "step-00000002-attempt-0").unlink()
    with pytest.raises(ZeroDivisionError):  # the bytes of step 1 are verified, so the program is at fault
        muster.load_checkpoint(lambda files: 1 // 0 if files.step == 1 else parsed(files))


def test_no_checkpoint_at_all_starts_fresh_but_only_bad_ones_do_not(folder: Path, job: Job) -> None:
    job.monkeypatch.delenv("MUSTER_URL")
    job.start(0)
    assert muster.load_checkpoint(read) is None
    muster.save_checkpoint(1, text("x"))
    (folder / "step-00000001-attempt-0").write_text("y")
    job.start(0)
    with pytest.raises(muster.NoGoodCheckpoint, match="none of 1 checkpoints"):
        muster.load_checkpoint(read)


def test_file_url_is_the_same_as_its_folder(folder: Path, job: Job) -> None:
    job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", f"file://{folder}")
    saved = muster.save_checkpoint(1, text("x"))
    assert saved == muster.Checkpoint(str(folder / "step-00000001-attempt-1"), 1)
    job.monkeypatch.setenv("MUSTER_CHECKPOINT", f"file://{folder}/step-00000001-attempt-1")
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[0] == "x"


def test_background_and_sharded_saves_leave_nothing_but_the_checkpoints(folder: Path, job: Job) -> None:
    for step, options in (
        (1, {"background": True}),
        (2, {"sharded": True}),
        (3, {"background": True, "sharded": True}),
    ):
        saved = muster.save_checkpoint(step, tree, **options)  # type: ignore[arg-type]
        if isinstance(saved, muster.Saving):
            saved.wait(20)
    assert listed(folder) == ["step-00000002-attempt-1", "step-00000003-attempt-1"]
    assert os.listdir(job.folder / "copies") == []
    job.controller.attempt = 2
    with pytest.raises(muster.StaleAttempt):
        muster.save_checkpoint(4, tree, sharded=True)
    assert listed(folder) == ["step-00000002-attempt-1", "step-00000003-attempt-1"]


def test_sparser_schedule_stays(folder: Path, job: Job) -> None:
    for step in (5, 10, 15, 20, 25):
        muster.save_checkpoint(step, text("x"), keep=1, keep_every=10)
    names = [name.split("-")[1].lstrip("0") for name in listed(folder)]
    assert names == ["10", "20", "25"]


def test_unfinished_checkpoint_of_a_wrong_size_does_not_count_as_kept(folder: Path, job: Job) -> None:
    for step in (1, 2):
        muster.save_checkpoint(step, text("x"), keep=1)
    job.start(2)
    muster.save_checkpoint(3, text("x"), keep=2)
    (folder / "step-00000003-attempt-2").write_text("")
    muster.save_checkpoint(4, text("x"), keep=2)
    assert "step-00000002-attempt-1" in listed(folder)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sharded": True}], ids=["plain", "sharded"])
def test_kill_at_every_write(tmp_path: Path, options: dict[str, bool]) -> None:
    died, writes = True, 0
    while died:
        assert writes < WRITES_MAX
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda handle: None)
            job = new_job(tmp_path / str(writes), patch)
            folder = tmp_path / str(writes) / "ckpt"
            patch.setenv("MUSTER_CHECKPOINT_DIR", str(folder))
            for step in (1, 2):
                muster.save_checkpoint(step, tree, keep=1, **options)  # type: ignore[arg-type]
            with pytest.MonkeyPatch.context() as dead:
                job.kill_after(writes)
                count = job.controller.before
                for name in ("rename", "replace", "unlink", "rmdir", "fsync", "makedirs"):
                    dead.setattr(os, name, dying(getattr(os, name), count))
                try:
                    muster.save_checkpoint(3, tree, keep=1, **options)  # type: ignore[arg-type]
                    died = False
                except Killed:
                    died = True
            job.revive()
            newest = job.controller.confirmed[0]["step"]
            job.start(2)
            loaded = muster.load_checkpoint(lambda files: sorted(os.listdir(files.path)))
            assert loaded is not None
            assert (loaded[0], loaded[1].step) == (["model", "optimizer"], newest)
            for step in (4, 5):
                muster.save_checkpoint(step, tree, keep=1, **options)  # type: ignore[arg-type]
            stay = {f"step-{newest:08d}-attempt-1", "step-00000005-attempt-2"}  # the attempt began from `newest`
            if not options:
                stay.add("step-00000004-attempt-2")  # without options, the one before the newest always stays
            assert {*listed(folder)} == stay
        writes += 1
    assert writes > 10


def dying(function: Any, count: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        count()
        return function(*arguments, **options)

    return call
