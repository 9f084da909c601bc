from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from muster.sdk import records
from muster.sdk.saves import own


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "MUSTER_URL", "MUSTER_ATTEMPT", "MUSTER_CHECKPOINT", "MUSTER_CHECKPOINT_STEP", "RANK", "MUSTER_JOB",
        "MUSTER_JOB_UID", "MUSTER_NAMESPACE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "ckpt"))
    monkeypatch.setattr(own, "_committed", None)
    return tmp_path / "ckpt"


def text(content: str) -> Callable[[str], object]:
    return lambda path: Path(path).write_text(content)


def listed(folder: Path) -> list[str]:
    """What lies in the folder, without Muster's records."""
    return sorted(name for name in os.listdir(folder) if name != records.FOLDER)


def as_job(monkeypatch: pytest.MonkeyPatch, name: str, attempt: int = 1) -> None:
    """From now on this process is rank 0 of a job."""
    for key, value in (("MUSTER_JOB", name), ("MUSTER_JOB_UID", f"uid-{name}"), ("MUSTER_NAMESPACE", "ns")):
        monkeypatch.setenv(key, value)
    restarted(monkeypatch, attempt)


def restarted(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    monkeypatch.setattr(own, "_committed", None)
    monkeypatch.setenv("MUSTER_ATTEMPT", str(attempt))


def test_without_muster_the_newest_checkpoint_is_the_one_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert muster.last_checkpoint() is None
    for step in (9, 10, 100):
        muster.save_checkpoint(step, text(str(step)))
    monkeypatch.setattr(own, "_committed", None)  # as a new process sees it
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
    assert listed(folder) == ["step-00000001-attempt-0"]
    assert [each.name for each in records.read(folder)] == ["step-00000001-attempt-0"]


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


@pytest.mark.parametrize(("options", "hidden"), [({}, True), ({"background": True}, False), ({"sharded": True}, False)])
def test_path_given_to_write_has_a_name_before_its_last_dot(options: dict[str, bool], hidden: bool) -> None:
    """On the first real GPU, no checkpoint of `torch.save(state, path)` was saved: its archive has the file's name up
    to the last dot, which must not be empty ("invalid file name"). `test_torchrun.py` calls `torch.save`."""
    names = []

    def write(path: str) -> None:
        names.append(os.path.basename(path))
        Path(path).write_text("x")

    saved = muster.save_checkpoint(1, write, **options)
    if isinstance(saved, muster.Saving):
        saved.wait()
    (name,) = names
    assert name.rpartition(".")[0] if "." in name else name
    assert name.startswith(".") == hidden  # the others lie in a hidden folder, or in one of this machine


def test_old_ones_go_but_never_the_one_this_attempt_began_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_job(monkeypatch, "train", attempt=1)
    first = muster.save_checkpoint(1, text("1"))
    assert first is not None
    as_job(monkeypatch, "train", attempt=4)
    muster.save_checkpoint(1, text("of a newer attempt"))
    as_job(monkeypatch, "train", attempt=3)
    monkeypatch.setenv("MUSTER_CHECKPOINT", first.path)
    monkeypatch.setenv("MUSTER_CHECKPOINT_STEP", "1")
    for step in (2, 3, 4):
        muster.save_checkpoint(step, text(str(step)))
    assert listed(folder) == [
        "step-00000001-attempt-1",  # begun from
        "step-00000001-attempt-4",  # a newer attempt's
        "step-00000003-attempt-3",
        "step-00000004-attempt-3",
    ]


def test_two_jobs_in_one_folder_remove_only_what_they_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 11.2: pruning by one job deleted the other's confirmed checkpoint."""
    folder.mkdir()
    unmarked = ("step-00000900-attempt-1", ".writing-step-00000900-attempt-1-77", "notes")
    for name in unmarked:  # of an older version, or of a person: without a record their owner is unknown
        (folder / name).write_text("x")
    as_job(monkeypatch, "one")
    muster.save_checkpoint(1, text("one"))
    muster.save_checkpoint(2, text("one"))
    for attempt in (1, 2):
        as_job(monkeypatch, "two", attempt)
        for step in (101, 102, 103):
            muster.save_checkpoint(step, text("two"))
    kept = {"step-00000001-attempt-1", "step-00000002-attempt-1", *unmarked}
    assert {*listed(folder)} == kept | {"step-00000102-attempt-2", "step-00000103-attempt-2"}
    monkeypatch.delenv("MUSTER_ATTEMPT")  # a script without Muster, in the same folder
    for step in (201, 202, 203):
        muster.save_checkpoint(step, text("script"))
    assert kept < {*listed(folder)}
    assert {"step-00000102-attempt-2", "step-00000202-attempt-0", "step-00000203-attempt-0"} < {*listed(folder)}
    assert "step-00000201-attempt-0" not in listed(folder)


def test_unconfirmed_checkpoints_are_removed_with_the_next_confirmed_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 11.2: only confirmed checkpoints count as kept; a writer that was killed leaves nothing behind for ever."""
    as_job(monkeypatch, "train", attempt=1)
    muster.save_checkpoint(1, text("1"))

    def killed(path: str) -> None:
        Path(path).write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as dead:  # a process that was killed removes nothing
        dead.setattr("muster.sdk.checkpoints._remove", lambda path: None)
        dead.setattr(records, "remove", lambda folder, record: None)
        with pytest.raises(KeyboardInterrupt):
            muster.save_checkpoint(2, killed)
    assert len(listed(folder)) == 2
    as_job(monkeypatch, "train", attempt=2)
    muster.save_checkpoint(3, text("3"))
    assert listed(folder) == ["step-00000001-attempt-1", "step-00000003-attempt-2"]
    assert [(each.step, each.confirmed > 0) for each in records.read(folder)] == [(1, True), (3, True)]


def test_a_folder_where_records_cannot_be_written_keeps_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Issue 11.2: nothing is removed by its name alone."""
    folder.mkdir()
    (folder / records.FOLDER).write_text("a file where the folder of records should be")
    as_job(monkeypatch, "train")
    for step in (1, 2, 3):
        assert muster.save_checkpoint(step, text("x")) is not None
    assert len(listed(folder)) == 3
    assert "will not be removed when it is old" in capfd.readouterr().err


def test_checkpoint_folder_names_its_job_and_its_confirmation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 11.2: another job continues from a folder after the job that wrote it was deleted."""
    for job in ("one", "two"):
        monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(folder / f"{job}-uid"))
        as_job(monkeypatch, job)
        muster.save_checkpoint(7, text(job))
        (folder / f"{job}-uid" / "step-00000009-attempt-1").write_text("never confirmed")
    found = records.of_job(str(folder), "ns", "one")
    assert found is not None
    assert (found.record.step, found.record.uid, Path(found.path).read_text()) == (7, "uid-one", "one")
    assert records.of_job(str(folder), "another", "one") is None
    assert [each.record.job for each in records.all_below(str(folder))] == ["two", "one"]
    inside, itself = records.at(str(folder / "two-uid")), records.at(found.path)
    assert inside is not None
    assert itself is not None
    assert (inside.record.job, itself.record.step) == ("two", 7)
    unmarked = records.at(str(folder / "one-uid" / "step-00000009-attempt-1"))
    assert unmarked is not None
    assert (unmarked.record.step, unmarked.record.confirmed) == (9, 0)
    assert records.at(str(folder / "three-uid")) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 3}', '{"name": "../../etc", "step": 1}', "\0"])
def test_a_file_that_is_not_a_record_is_left_alone(folder: Path, content: str) -> None:
    """Issue 11.2: a record names a checkpoint in its own folder, or it is none."""
    muster.save_checkpoint(1, text("1"))
    (folder / records.FOLDER / "bad.json").write_text(content)
    assert [each.step for each in records.read(str(folder))] == [1]


def test_only_rank_0_saves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert muster.save_checkpoint(1, text("x")) is None
    assert not folder.exists()


def test_a_missing_folder_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CHECKPOINT_DIR")
    assert muster.last_checkpoint() is None
    with pytest.raises(RuntimeError, match=r"--checkpoint DIR.*MUSTER_CHECKPOINT_DIR"):
        muster.save_checkpoint(1, text("x"))
