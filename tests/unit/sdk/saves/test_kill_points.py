"""Kills between any two writes of a save or a removal: restore finds the newest confirmed checkpoint that verifies."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import muster
from muster.sdk.saves import manifest
from tests.support.memorystore import Killed
from tests.unit.sdk.saves.conftest import Job, new_job, read, text

WRITES_MAX = 40


def intact(job: Job, path: str) -> bool:
    """Whether a checkpoint's objects are all there with the right bytes."""
    prefix = path.partition("://")[2]
    stored = job.bucket.objects.get(f"{prefix}/manifest.json")
    if stored is None:
        return False
    for shard in manifest.parse(stored[0]).shards:
        data = job.bucket.objects.get(f"{prefix}/{shard.key}", (b"", ""))[0]
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            return False
    return True


def newest_good(job: Job) -> int | None:
    return next((each["step"] for each in job.controller.confirmed if intact(job, each["path"])), None)


def enough_stayed(job: Job, before: set[str], keep: int) -> set[str]:
    """Check that each intact checkpoint that was removed is older than `keep` intact ones; returns the intact ones."""
    good = [intact(job, each["path"]) for each in job.controller.confirmed]
    for index, each in enumerate(job.controller.confirmed):
        assert good[index] or each["path"] not in before or sum(good[:index]) >= keep, each["path"]
    return {each["path"] for each, right in zip(job.controller.confirmed, good, strict=True) if right}


def restored(job: Job, attempt: int) -> int | None:
    """The step that a new attempt restores; its contents name the step too."""
    job.revive()
    job.start(attempt)
    loaded = muster.load_checkpoint(read)
    if loaded is None:
        return None
    assert loaded[0] == f"step {loaded[1].step}"
    return loaded[1].step


def save(step: int, sharded: bool) -> None:
    muster.save_checkpoint(step, text(f"step {step}"), keep=1, sharded=sharded)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_kill_at_every_write_of_a_save(tmp_path: Path, sharded: bool) -> None:
    for writes in range(WRITES_MAX):
        with pytest.MonkeyPatch.context() as patch:
            job = new_job(tmp_path / str(writes), patch)
            save(1, sharded)
            save(2, sharded)
            job.kill_after(writes)
            died = False
            try:
                save(3, sharded)
            except Killed:
                died = True
            confirmed = [each["step"] for each in job.controller.confirmed]
            assert restored(job, 2) == confirmed[0] == newest_good(job)
            save(4, sharded)
            assert restored(job, 3) == 4
            save(5, sharded)
            complete = {each.partition("/")[0] for each in job.objects() if each.endswith("/manifest.json")}
            assert complete == {"step-00000004-attempt-2", "step-00000005-attempt-3"}
            assert {*job.names()} == complete  # nothing of the killed save or removal is left
        if not died:
            break
    assert 5 < writes < WRITES_MAX - 1


EVENT = st.one_of(
    st.tuples(st.just("save"), st.integers(0, WRITES_MAX)),
    st.tuples(st.just("stale"), st.integers(0, WRITES_MAX)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("damage"), st.integers(0, 2)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=12), st.integers(1, 3), st.booleans())
def test_any_sequence_of_saves_kills_stale_attempts_and_damage(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]], keep: int, sharded: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        job = new_job(tmp_path_factory.mktemp("job"), patch)
        attempt, step, damaged = 1, 0, False
        before: set[str] = set()
        for kind, number in events:
            step += 1
            before = enough_stayed(job, before, keep)
            if kind == "damage":
                for each in job.controller.confirmed[number : number + 1]:
                    key = each["path"].partition("://")[2] + "/rank-00000"
                    if key in job.bucket.objects:
                        job.bucket.objects[key] = (b"X" + job.bucket.objects[key][0][1:], job.bucket.objects[key][1])
                        damaged = True
                        before.discard(each["path"])
                continue
            if kind == "stale" and attempt > 1:  # a process of the attempt before commits late
                job.start(attempt - 1, current=False)
                job.kill_after(number)
                with pytest.raises((muster.StaleAttempt, Killed)):
                    muster.save_checkpoint(step, text(f"step {step}"), keep=keep, sharded=sharded, verify="full")
                job.revive()
            if kind == "save":
                job.kill_after(number)
                with contextlib.suppress(Killed):
                    muster.save_checkpoint(step, text(f"step {step}"), keep=keep, sharded=sharded, verify="full")
                    job.revive()
                    continue
            attempt += 1
            job.revive()
            job.start(attempt)
        enough_stayed(job, before, keep)
        if not damaged and job.controller.confirmed:
            assert newest_good(job) == job.controller.confirmed[0]["step"]
        wanted = newest_good(job)
        if wanted is None and job.controller.confirmed:
            with pytest.raises(muster.NoGoodCheckpoint):
                restored(job, attempt + 1)
        else:
            assert restored(job, attempt + 1) == wanted
