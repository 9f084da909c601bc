"""Background saves: training continues after write(), and a limit holds it back if uploads fall behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import muster
from muster.sdk.data.errors import Forbidden, Unavailable
from muster.sdk.saves import background, heartbeat
from tests.support.waiting import eventually
from tests.unit.sdk.saves.conftest import Job, read, text

WAIT_S = 20.0


class Gate:
    """Holds uploads until it is opened."""

    def __init__(self, job: Job) -> None:
        self._open, self.reached = threading.Event(), threading.Event()
        job.bucket.before = self._before

    def _before(self, operation: str, key: str) -> None:
        if operation == "put" and ".muster/" not in key:
            self.reached.set()
            assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


def save(step: int, content: str = "x", **options: object) -> muster.Saving:
    saving = muster.save_checkpoint(step, text(content), background=True, **options)  # type: ignore[arg-type]
    assert isinstance(saving, muster.Saving)
    return saving


def test_pytorch_144657_values_may_change_as_soon_as_the_call_returns(job: Job) -> None:
    gate, weights = Gate(job), bytearray(b"step 1")
    saving = muster.save_checkpoint(1, lambda path: Path(path).write_bytes(weights), background=True)
    assert isinstance(saving, muster.Saving)
    weights[:] = b"step 2"
    assert not saving.done
    gate.open()
    assert saving.wait(WAIT_S).step == 1
    job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[0] == "step 1"


def test_orbax_394_write_has_ended_when_the_call_returns(job: Job) -> None:
    threads = []
    saving = muster.save_checkpoint(
        1, lambda path: (threads.append(threading.current_thread()), Path(path).touch()), background=True
    )
    assert threads == [threading.current_thread()]
    assert isinstance(saving, muster.Saving)
    saving.wait(WAIT_S)


def test_next_save_waits_for_room_and_the_time_is_reported(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate(job)
    first = save(1)
    assert gate.reached.wait(WAIT_S)
    results: list[muster.Saving] = []
    second = threading.Thread(target=lambda: results.append(save(2)))
    second.start()
    said = ""

    def waits() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "training waits: 1 earlier checkpoint(s)" in said

    eventually("it waits for room", waits)
    second.join(0.1)
    assert results == []
    gate.open()
    second.join(WAIT_S)
    results[0].wait(WAIT_S)
    assert first.done
    assert results[0].seconds_blocked >= 0.1
    assert job.controller.confirmed[0]["blockedSeconds"] == pytest.approx(results[0].seconds_blocked, abs=0.001)
    assert job.controller.confirmed[0]["uploadSeconds"] >= 0


def test_late_confirmation_does_not_set_the_progress_back(job: Job) -> None:
    gate = Gate(job)
    saving = save(1)
    muster.report(step=9)
    gate.open()
    saving.wait(WAIT_S)
    assert job.controller.steps == [1, 9]
    assert job.controller.confirmed[0]["step"] == 1


def test_step_is_reported_while_a_save_blocks_training(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that takes long is not a stall."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.01)
    reported = threading.Event()

    def before(operation: str, key: str) -> None:
        if operation == "put" and key.endswith("/rank-00000"):
            eventually("the step is reported again", lambda: len(job.controller.steps) > 2)
            reported.set()

    job.bucket.before = before
    muster.save_checkpoint(5, text("x"))
    assert reported.is_set()
    assert {*job.controller.steps} == {5}


def test_several_saves_may_be_unfinished_and_end_in_order(job: Job) -> None:
    gate = Gate(job)
    saves = [save(step, unfinished_max=3) for step in (1, 2, 3)]
    assert not any(each.done for each in saves)
    gate.open()
    for each in saves:
        each.wait(WAIT_S)
    assert [each["step"] for each in job.controller.confirmed] == [3, 2, 1]
    assert len(job.names()) == 2


def test_megatron_bridge_5184_unfinished_newer_save_does_not_make_retention_remove_the_last_confirmed_one(
    job: Job,
) -> None:
    def before(operation: str, key: str) -> None:
        if operation == "put" and "step-00000002" in key and ".muster/" not in key:
            raise Unavailable("the store is away", "mem", key)

    job.bucket.before = before
    saves = [save(step, unfinished_max=2, keep=1) for step in (1, 2)]
    saves[0].wait(WAIT_S)
    with pytest.raises(muster.CheckpointNotSaved):
        saves[1].wait(WAIT_S)
    assert "step-00000001-attempt-1/manifest.json" in job.objects()


def test_bucket_that_is_away_costs_one_checkpoint_and_training_continues(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    muster.save_checkpoint(1, text("1"))

    def away(operation: str, key: str) -> None:
        raise Unavailable("no answer within 600 s", "mem", key)

    saving = save(2)
    saving.wait(WAIT_S)
    gate = Gate(job)
    dropped = save(3)
    job.bucket.before = away
    gate.open()
    with pytest.raises(muster.CheckpointNotSaved, match="earlier checkpoints still count"):
        dropped.wait(WAIT_S)
    job.bucket.revive()
    assert save(4).wait(WAIT_S).step == 4  # the next save does not raise the error of the earlier one
    (problem,) = job.controller.problems
    assert (problem["step"], problem["path"]) == (3, dropped.path)
    assert "no answer within 600 s" in problem["message"]
    assert "checkpoint of step 3 is not saved" in capsys.readouterr().err
    assert [each["step"] for each in job.controller.confirmed] == [4, 2, 1]
    assert os.listdir(job.folder / "copies") == []


def test_error_that_will_not_pass_is_raised_by_the_next_save(job: Job) -> None:
    def refused(operation: str, key: str) -> None:
        if operation == "put" and ".muster/" not in key:
            raise Forbidden("no permission to write", "mem", key)

    job.bucket.before = refused
    saving = save(1)
    with pytest.raises(muster.CheckpointNotSaved, match="no permission"):
        saving.wait(WAIT_S)
    assert isinstance(saving.error, muster.CheckpointNotSaved)
    with pytest.raises(muster.CheckpointNotSaved, match="no permission"):
        save(2)


def test_stale_attempt_learns_it_at_the_next_save_and_its_objects_are_gone(job: Job) -> None:
    gate = Gate(job)
    saving = save(1)
    job.controller.attempt = 2
    gate.open()
    with pytest.raises(muster.StaleAttempt):
        saving.wait(WAIT_S)
    assert job.bucket.objects == {}
    with pytest.raises(muster.StaleAttempt):
        save(2)


def test_write_that_fails_is_raised_at_once_and_leaves_nothing(job: Job) -> None:
    def broken(path: str) -> None:
        Path(path).write_text("half")
        raise RuntimeError("no gradient")

    with pytest.raises(RuntimeError, match="no gradient"):
        muster.save_checkpoint(1, broken, background=True)
    assert os.listdir(job.folder / "copies") == []
    save(2).wait(WAIT_S)


def test_full_disk_names_the_folder_and_the_fix(job: Job) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(muster.CheckpointNotSaved, match="MUSTER_SAVE_DIR"):
        muster.save_checkpoint(1, full, background=True)


def test_wait_ends_at_its_time(job: Job) -> None:
    gate = Gate(job)
    saving = save(1)
    with pytest.raises(TimeoutError, match="step 1"):
        saving.wait(0.01)
    gate.open()
    saving.wait(WAIT_S)


def test_copies_of_killed_processes_are_removed_in_the_next_attempt(job: Job) -> None:
    copies = job.folder / "copies"
    job.start(3)
    for name in ("rank-0-attempt-2-abc", "rank-0-attempt-3-abc", "rank-1-attempt-2-abc"):
        (copies / f"muster-save-uid-{name}").mkdir(parents=True)
    (copies / "of-the-program").mkdir()
    muster.save_checkpoint(1, text("x"))
    assert sorted(os.listdir(copies)) == [
        "muster-save-uid-rank-0-attempt-3-abc", "muster-save-uid-rank-1-attempt-2-abc", "of-the-program",
    ]  # fmt: skip


PROGRAM = """
import os, sys
import muster
def write(path):
    with open(path, "wb") as file:
        file.write(os.urandom(1 << 20))
muster.save_checkpoint(3, write, background=True)
"""


def test_program_that_ends_waits_for_its_last_checkpoint(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    env["MUSTER_CHECKPOINT_DIR"] = str(tmp_path / "ckpt")
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "checkpoint of step 3 is saved" in ended.stderr
    assert "upload" not in ended.stderr, "a folder is not a store"
    assert (tmp_path / "ckpt/step-00000003-attempt-0").stat().st_size == 1 << 20


def test_other_ranks_say_that_only_their_part_is_stored(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start(1, rank=1, ranks=2)
    save(4, sharded=True).wait(WAIT_S)
    said = capsys.readouterr().err
    assert "its part of the checkpoint of step 4 is stored" in said
    assert "the upload took" in said


def test_exit_names_the_checkpoints_that_are_lost(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CONFIRM_S", 0.0)
    gate = Gate(job)
    saving = save(1, deadline_s=0.05)
    assert background._current is not None
    background._current.drain()
    said = capsys.readouterr().err
    assert "waiting until the checkpoints of these steps are stored: 1" in said
    assert "lost: the checkpoint of step 1" in said
    gate.open()
    saving.wait(WAIT_S)


def test_save_without_room_in_time_is_dropped_and_reported(job: Job) -> None:
    gate = Gate(job)
    first = save(1)
    dropped = save(2, deadline_s=0.05)
    with pytest.raises(muster.CheckpointNotSaved, match="earlier saves did not end within"):
        dropped.wait(0)
    with pytest.raises(muster.CheckpointNotSaved, match="Save less often"):
        muster.save_checkpoint(3, text("x"), deadline_s=0.05)
    gate.open()
    first.wait(WAIT_S)
    assert job.controller.problems[-1]["step"] == 3
