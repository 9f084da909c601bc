"""Old checkpoints in an object store are removed after enough newer ones were confirmed and checked."""

from __future__ import annotations

import pytest

import muster
from muster.sdk import records
from muster.sdk.data.errors import Unavailable
from muster.sdk.saves.retention import Retention, obsolete
from tests.support.memorystore import Killed
from tests.unit.sdk.saves.conftest import PREFIX, Job, read, text


def record(step: int, attempt: int = 1, confirmed: bool = True, bad: str = "") -> records.Record:
    name = f"step-{step:08d}-attempt-{attempt}"
    return records.Record(name, step, attempt, "uid", "train", "ns", 100.0 - step, float(confirmed), name, bad)


def removed(ours: list[records.Record], rules: Retention, bad: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    return [each.step for each in obsolete(ours, rules, lambda each: each.step not in bad, set(), set(), 9)]


def test_newest_confirmed_checkpoints_stay() -> None:
    ours = [record(step) for step in (1, 2, 3, 4)]
    assert removed(ours, Retention(keep=2)) == [1, 2]
    assert removed(ours, Retention(keep=9)) == []
    assert removed(ours, Retention(keep=0)) == [1, 2, 3]


def test_order_of_attempts_decides_and_clocks_of_nodes_do_not() -> None:
    """Clock skew: `written` falls from step to step here, as after a move to a node whose clock is behind."""
    ours = [record(9, attempt=1), record(3, attempt=2), record(4, attempt=2)]
    assert removed(ours, Retention(keep=2)) == [9]


def test_checkpoint_that_fails_the_check_does_not_count_as_kept() -> None:
    ours = [record(step) for step in (1, 2, 3, 4)]
    assert removed(ours, Retention(keep=2), bad={4}) == [1]
    assert removed(ours, Retention(keep=2), bad={2, 3, 4}) == []
    assert removed(ours, Retention(keep=2), bad={1, 3, 4}) == []
    assert removed([*ours, record(5, bad="Checksum")], Retention(keep=2)) == [1, 2]


def test_kempnerforge_102_nothing_is_removed_while_the_newer_one_is_not_confirmed() -> None:
    assert removed([record(1), record(2, confirmed=False)], Retention(keep=1)) == []
    assert removed([record(1), record(2, confirmed=False), record(3)], Retention(keep=1)) == [1, 2]


def test_unconfirmed_checkpoint_of_this_attempt_goes_only_if_this_process_gave_it_up() -> None:
    """Other ranks of a sharded save may be ahead of rank 0, and have shards of the next checkpoint."""
    ours = [record(1, attempt=9, confirmed=False), record(2, attempt=9)]
    for failed, gone in (set(), []), ({ours[0].name}, [1]):
        found = obsolete(ours, Retention(), lambda each: True, set(), failed, 9)
        assert [each.step for each in found] == gone


def test_marin_5386_sparser_schedule_stays_for_ever() -> None:
    ours = [record(step) for step in (40, 90, 100, 140, 210, 250, 300, 310)]
    assert removed(ours, Retention(keep=1, keep_every=100)) == [40, 90, 140, 250]
    rest = [each for each in ours if each.step not in (40, 90, 140, 250)]
    assert removed([*rest, record(320)], Retention(keep=1, keep_every=100)) == [310]


def test_only_the_jobs_own_objects_are_removed(job: Job) -> None:
    job.bucket.write("bucket/ckpt/train-uid/notes", b"x")
    job.bucket.write("bucket/ckpt/train-uid/step-00000000-attempt-1/rank-00000", b"without a record")
    job.bucket.write("bucket/ckpt/other-uid2/step-00000001-attempt-1/manifest.json", b"x")
    for step in (1, 2, 3, 4):
        muster.save_checkpoint(step, text("x"))
    assert job.names() == [
        "notes", "step-00000000-attempt-1", "step-00000003-attempt-1", "step-00000004-attempt-1",
    ]  # fmt: skip
    assert "bucket/ckpt/other-uid2/step-00000001-attempt-1/manifest.json" in job.bucket.objects


def test_checkpoint_from_which_the_attempt_began_stays(job: Job) -> None:
    first = muster.save_checkpoint(1, text("x"))
    job.start(2)
    for step in (2, 3, 4):
        muster.save_checkpoint(step, text("x"), keep=1)
    assert job.names() == ["step-00000001-attempt-1", "step-00000004-attempt-2"]
    assert first is not None


def test_removal_deletes_the_manifest_first_and_the_record_last(job: Job) -> None:
    for step in (1, 2):
        muster.save_checkpoint(step, text("x"), sharded=True)
    job.bucket.operations.clear()
    muster.save_checkpoint(3, text("x"), sharded=True)
    name = f"{PREFIX}/step-00000001-attempt-1"
    assert [key for operation, key in job.bucket.operations if operation == "delete"] == [
        f"{name}/manifest.json",
        f"{name}/parts/rank-00000.json",
        f"{name}/rank-00000",
        f"{PREFIX}/.muster/step-00000001-attempt-1.json",
    ]


@pytest.mark.parametrize("operations", range(4))
def test_interrupted_removal_leaves_nothing_complete_and_is_finished_by_the_next_save(
    job: Job, operations: int
) -> None:
    for step in (1, 2):
        muster.save_checkpoint(step, text("x"), sharded=True)
    writes = 5  # record, shard, part, manifest, record
    job.bucket.kill_after(writes + operations)
    with pytest.raises(Killed):
        muster.save_checkpoint(3, text("x"), sharded=True)
    job.bucket.revive()
    left = [key for key in job.objects() if key.startswith("step-00000001")]
    assert not (operations and "step-00000001-attempt-1/manifest.json" in left)
    job.start(2)
    muster.save_checkpoint(4, text("x"), sharded=True)
    assert job.names() == ["step-00000003-attempt-1", "step-00000004-attempt-2"]
    assert [key for key in job.bucket.objects if ".muster/step-00000001" in key] == []


def test_store_that_fails_after_the_confirmation_does_not_fail_the_save(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    muster.save_checkpoint(1, text("x"), keep=1)

    def away(operation: str, key: str) -> None:
        if operation == "delete":
            raise Unavailable("the store is away", "mem", key)

    job.bucket.before = away
    assert muster.save_checkpoint(2, text("x"), keep=1) is not None
    assert "old checkpoints could not be removed" in capsys.readouterr().err
    assert len(job.names()) == 2
    job.bucket.revive()
    muster.save_checkpoint(3, text("x"), keep=1)
    assert job.names() == ["step-00000003-attempt-1"]


def test_checkpoint_whose_shard_changed_is_not_counted_and_the_older_ones_stay(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    muster.save_checkpoint(2, text("2"))
    key = f"{PREFIX}/step-00000002-attempt-1/rank-00000"
    job.bucket.write(key, b"!")  # of the same size; its ETag differs
    muster.save_checkpoint(3, text("3"))
    assert len(job.names()) == 3
    job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[0] == "3"


def test_full_check_reads_the_bytes(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    muster.save_checkpoint(2, text("2"))
    job.change("2-attempt-1/rank-00000", lambda data: b"!")  # bits rot: size and ETag are the same
    muster.save_checkpoint(3, text("3"), verify="full")
    assert len(job.names()) == 3
    muster.save_checkpoint(4, text("4"))
    assert len(job.names()) == 2


def test_confirmation_that_was_not_noted_is_noted_by_the_next_attempt(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    job.bucket.kill_after(3)  # record, shard, manifest; the controller confirms; the record is not written again
    with pytest.raises(Killed):
        muster.save_checkpoint(2, text("2"))
    job.bucket.revive()
    job.start(2)
    muster.save_checkpoint(3, text("3"))
    assert job.names() == ["step-00000002-attempt-1", "step-00000003-attempt-2"]


def test_quarantined_checkpoint_does_not_count_as_kept(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    muster.save_checkpoint(2, text("2"))
    job.change("2-attempt-1/rank-00000", lambda data: b"!")
    job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[1].step == 1
    muster.save_checkpoint(3, text("3"))
    assert "step-00000001-attempt-1" in job.names()
    muster.save_checkpoint(4, text("4"))
    muster.save_checkpoint(5, text("5"))
    assert job.names() == ["step-00000001-attempt-1", "step-00000004-attempt-2", "step-00000005-attempt-2"]
