"""Manifests that cannot be trusted, stores that refuse, and attempts that commit late."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster.sdk.data.errors import Forbidden, StoreError, Unavailable
from muster.sdk.saves import manifest
from muster.sdk.saves.manifest import BadCheckpoint, Manifest, Shard
from tests.support.memorystore import MemoryStore
from tests.unit.sdk.saves.conftest import PREFIX, Job, read, text

GOOD: dict[str, Any] = {
    "version": 1, "job": "train", "uid": "uid", "attempt": 1, "step": 4, "worldSize": 2, "sharded": True,
    "cursor": None, "skipped": [],
    "shards": [{"key": "rank-00001/a", "rank": 1, "bytes": 3, "sha256": "0" * 64, "etag": "v1"}],
}  # fmt: skip


def parse(**changes: Any) -> Manifest:
    return manifest.parse(json.dumps({**GOOD, **changes}).encode())


def shard(**changes: Any) -> list[dict[str, Any]]:
    return [{**GOOD["shards"][0], **changes}]


def test_unknown_fields_of_the_same_version_are_ignored() -> None:
    assert parse(more={"x": 1}, shards=shard(more=2)) == parse()
    assert parse().shards == (Shard("rank-00001/a", 1, 3, "0" * 64, "v1"),)


def test_manifest_of_a_future_version_is_refused_with_the_reason() -> None:
    with pytest.raises(
        BadCheckpoint, match=r"has version 2, .* reads at most 1: use the Muster that wrote it|later"
    ) as error:
        parse(version=2, shards="another form")
    assert error.value.reason == "Version"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "1"}, {"version": True}, {"version": 0}, {"job": None}, {"attempt": -1}, {"step": 2**63},
        {"worldSize": 0}, {"worldSize": 1}, {"sharded": 1}, {"cursor": 3}, {"skipped": "no"}, {"shards": {}},
        {"shards": shard(key="../../etc/passwd")}, {"shards": shard(key="/etc/passwd")}, {"shards": shard(key="")},
        {"shards": shard(key="a//b")}, {"shards": shard(key="a\0b")}, {"shards": shard(key="x" * 1025)},
        {"shards": shard(sha256="0" * 63)}, {"shards": shard(sha256="Z" * 64)}, {"shards": shard(bytes=-1)},
        {"shards": shard(bytes=1.5)}, {"shards": shard(rank=-1)}, {"shards": shard() * 2}, {"shards": ["a"]},
    ],
)  # fmt: skip
def test_manifest_with_a_wrong_field_is_damaged(changes: dict[str, Any]) -> None:
    with pytest.raises(BadCheckpoint, match="manifest is damaged") as error:
        parse(**changes)
    assert error.value.reason == "Manifest"


@pytest.mark.slow
@given(
    st.binary(max_size=64) | st.recursive(st.none() | st.text(), st.lists).map(lambda each: json.dumps(each).encode())
)
def test_any_other_bytes_are_damaged_too(data: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        manifest.parse(data)


def test_manifest_survives_its_encoding() -> None:
    known = parse(cursor="c", skipped=["a/1", ["b", 2]])
    assert manifest.parse(manifest.encode(known)) == known


def test_larger_manifest_than_the_limit_is_not_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    muster.save_checkpoint(1, text("x"))
    monkeypatch.setattr(manifest, "BYTES_MAX", 100)
    job.start(2)
    job.bucket.operations.clear()
    with pytest.raises(muster.NoGoodCheckpoint):
        muster.load_checkpoint(read)
    assert job.controller.outcomes[0]["reason"] == "Manifest"
    assert ("read", f"{PREFIX}/step-00000001-attempt-1/manifest.json") not in job.bucket.operations


def fail(job: Job, error: type[StoreError], operation: str, part: str) -> None:
    def before(asked: str, key: str) -> None:
        if asked == operation and part in key:
            raise error(f"the store refuses {key}", "mem", key)

    job.bucket.before = before


def test_one_shard_without_permission_fails_the_checkpoint_and_nothing_else(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    job.start(2)
    fail(job, Forbidden, "read", "rank-00000")
    with pytest.raises(muster.NoGoodCheckpoint):
        muster.load_checkpoint(read)
    assert job.controller.outcomes[0]["reason"] == "Read"


@pytest.mark.parametrize("error", [Forbidden, Unavailable])
def test_credentials_that_expired_and_a_store_that_is_away_do_not_make_a_checkpoint_bad(
    job: Job, error: type[StoreError]
) -> None:
    muster.save_checkpoint(1, text("1"))
    job.start(2)

    def refuse(operation: str, key: str) -> None:
        raise error(f"the store refuses {key}", "mem", key)

    job.bucket.before = refuse
    with pytest.raises(error):
        muster.load_checkpoint(read)
    assert job.controller.outcomes == []
    job.bucket.revive()
    assert muster.load_checkpoint(read) is not None


def test_credentials_that_expire_during_a_load_are_not_blamed_on_the_shard(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    job.start(2)
    expired = False

    def before(operation: str, key: str) -> None:
        nonlocal expired
        expired = expired or key.endswith("/rank-00000")
        if expired:
            raise Forbidden("the token expired", "mem", key)

    job.bucket.before = before
    with pytest.raises(Forbidden):
        muster.load_checkpoint(read)
    assert job.controller.outcomes == []


def test_verdict_that_the_node_is_at_fault_stops_this_rank(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    muster.save_checkpoint(1, text("1"))
    muster.save_checkpoint(2, text("2"))
    job.start(2)
    fail(job, Forbidden, "read", "rank-00000")
    monkeypatch.setattr(job.controller, "_restore", lambda body: {"verdict": "fail"})
    with pytest.raises(muster.NoGoodCheckpoint, match=r"this node cannot load .*step-00000002.*the store refuses"):
        muster.load_checkpoint(read)


def test_stale_attempt_that_commits_late_changes_nothing(job: Job) -> None:
    muster.save_checkpoint(1, text("1"))
    job.controller.attempt = 2  # the process of attempt 1 still runs
    before = dict(job.bucket.objects)
    for options in ({}, {"sharded": True}):
        with pytest.raises(muster.StaleAttempt):
            muster.save_checkpoint(2, text("2"), **options)  # type: ignore[arg-type]
    assert job.bucket.objects == before


def test_lost_answer_of_the_manifest_is_adopted_and_a_foreign_manifest_is_not(job: Job) -> None:
    real = job.bucket.write

    def lost(key: str, data: bytes, create_only: bool = False) -> str:
        if key.endswith("/manifest.json") and key not in job.bucket.objects:
            real(key, data if lost_answer else b"of another process", create_only)
        return real(key, data, create_only)

    job.monkeypatch.setattr(job.bucket, "write", lost)
    lost_answer = True
    assert muster.save_checkpoint(1, text("1")) is not None
    lost_answer = False
    with pytest.raises(muster.CheckpointNotSaved, match="two processes run as rank 0"):
        muster.save_checkpoint(2, text("2"))
    assert [each["step"] for each in job.controller.confirmed] == [1]


def test_file_that_changes_while_it_is_uploaded_is_refused(job: Job) -> None:
    def write(path: str) -> None:
        with open(path, "w") as file:
            file.write("x")

        def grow(operation: str, key: str) -> None:
            if operation == "put" and key.endswith("/rank-00000"):
                with open(path, "a") as file:
                    file.write("more")

        job.bucket.before = grow

    with pytest.raises(muster.CheckpointNotSaved, match="changed while it was uploaded"):
        muster.save_checkpoint(1, write)


def test_write_that_makes_nothing_is_named(job: Job) -> None:
    with pytest.raises(muster.CheckpointNotSaved, match="left nothing readable"):
        muster.save_checkpoint(1, lambda path: None)


def test_link_to_a_folder_is_named_and_not_left_out(job: Job) -> None:
    def write(path: str) -> None:
        os.makedirs(f"{path}/real")
        Path(path, "real", "a").touch()
        os.symlink("real", f"{path}/link")

    with pytest.raises(muster.CheckpointNotSaved, match="link, which is not a file"):
        muster.save_checkpoint(1, write)
    job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(job.folder / "ckpt"))
    assert muster.save_checkpoint(2, write) is not None  # in a folder it is what it was


def test_full_disk_during_a_load_names_the_folder(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    muster.save_checkpoint(1, text("x"))
    job.start(2)

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryStore, "read_into", full)
    with pytest.raises(OSError, match=r"does not fit on this node: free space in .*restore"):
        muster.load_checkpoint(read)


def test_records_that_did_not_change_are_read_once(job: Job) -> None:
    for step in range(1, 6):
        muster.save_checkpoint(step, text("x"), keep=9)
    job.bucket.operations.clear()
    muster.save_checkpoint(6, text("x"), keep=9)
    reads = [key for operation, key in job.bucket.operations if operation == "read" and "/.muster/" in key]
    assert {each.rpartition("/")[2] for each in reads} == {"step-00000006-attempt-1.json"}


def test_arguments_are_checked(job: Job) -> None:
    for options in (
        {"verify": "sometimes"}, {"background": True, "unfinished_max": 0}, {"cursor": 7}, {"skipped": [b"x"]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="save_checkpoint"):
            muster.save_checkpoint(1, text("x"), **options)  # type: ignore[arg-type]


def test_training_thread_does_not_touch_the_store_during_a_background_save(job: Job) -> None:
    threads = set()
    job.bucket.before = lambda operation, key: threads.add(threading.current_thread().name)
    saving = muster.save_checkpoint(1, text("x"), background=True)
    assert isinstance(saving, muster.Saving)
    saving.wait(20)
    assert threads == {"muster-save"}


def test_url_of_another_scheme_is_for_the_program_alone(job: Job) -> None:
    job.monkeypatch.undo()
    job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", "hdfs://name-node/ckpt")
    job.monkeypatch.delenv("MUSTER_URL", raising=False)
    assert muster.checkpoint_dir() == "hdfs://name-node/ckpt"
    assert muster.last_checkpoint() is None
    with pytest.raises(muster.CheckpointNotSaved, match="use s3://"):
        muster.save_checkpoint(1, text("x"))
