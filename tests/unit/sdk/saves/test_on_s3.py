"""The same on a real S3 protocol: moto's server."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.sdk.saves import bucket
from tests.support.awsserver import aws_server
from tests.support.buckets import new_bucket, secret_folder
from tests.support.memorystore import Killed
from tests.unit.sdk.saves.conftest import Job, new_job, read, text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aws_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def s3_job(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    real = bucket.open_bucket
    job = new_job(tmp_path, monkeypatch)
    monkeypatch.setattr(bucket, "open_bucket", real)
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", f"s3://{new_bucket(server)}/ckpt/train-uid")
    monkeypatch.setenv("MUSTER_CHECKPOINT_ENDPOINT", server)
    monkeypatch.setenv("MUSTER_CHECKPOINT_REGION", "us-east-1")
    monkeypatch.setenv("MUSTER_CHECKPOINT_CREDENTIALS", secret_folder(tmp_path / "secret"))
    return job


class Dying:
    """A store that dies at the write after so many."""

    def __init__(self, store: Any, writes: int) -> None:
        self._store, self._left = store, writes

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "delete"):
            self._left -= 1
            if self._left < 0:
                raise Killed(name)
        return getattr(self._store, name)


@pytest.mark.slow
def test_save_and_load(s3_job: Job, server: str) -> None:
    content = "x" * (18 << 20)  # more than one part of a multipart upload
    saved = muster.save_checkpoint(1, text(content))
    assert isinstance(saved, muster.Checkpoint)
    s3_job.start(2)
    loaded = muster.load_checkpoint(lambda files: hashlib.sha256(read(files).encode()).hexdigest())
    assert loaded == (hashlib.sha256(content.encode()).hexdigest(), saved)
    assert s3_job.controller.outcomes[0]["bytesFrom"]["bucket"] == len(content)


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5])
def test_killed_save_and_removal(s3_job: Job, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the record, the shard, the manifest, the confirmation, and the first deletion."""
    for step in (1, 2):
        muster.save_checkpoint(step, text(str(step)), keep=1)
    real = bucket.open_bucket
    with monkeypatch.context() as dead:

        def dying(url: str, deadline_s: float) -> bucket.Bucket:
            found = real(url, deadline_s)
            return bucket.Bucket(Dying(found.store, writes), found.url)  # type: ignore[arg-type]

        dead.setattr(bucket, "open_bucket", dying)
        with pytest.raises(Killed):
            muster.save_checkpoint(3, text("3"), keep=1)
    newest = s3_job.controller.confirmed[0]["step"]
    assert newest == (3 if writes >= 3 else 2)
    s3_job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[0] == str(newest)
    muster.save_checkpoint(4, text("4"), keep=1)
    left = {each.name for each in bucket.open_bucket(muster.checkpoint_dir(), 20).complete()}
    assert left == {f"step-{newest:08d}-attempt-1", "step-00000004-attempt-2"}


def test_without_muster_the_newest_checkpoint_is_found_by_its_manifest(s3_job: Job, server: str) -> None:
    s3_job.monkeypatch.delenv("MUSTER_URL")
    s3_job.start(0)
    assert muster.last_checkpoint() is None
    for step in (9, 10):
        muster.save_checkpoint(step, text(str(step)))
    s3_job.start(0)
    last = muster.last_checkpoint()
    assert last is not None
    assert last.step == 10
    name, _, path = last.path.partition("://")[2].partition("/")
    request = urllib.request.Request(f"{server}/{name}/{path}/manifest.json", method="DELETE")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request")
    urllib.request.urlopen(request, timeout=10).close()
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    assert loaded[0] == "9"


def test_wrong_bucket_is_named(s3_job: Job) -> None:
    s3_job.monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", "s3://no-such-bucket/ckpt")
    with pytest.raises(muster.CheckpointNotSaved, match="no-such-bucket"):
        muster.save_checkpoint(1, text("x"))
