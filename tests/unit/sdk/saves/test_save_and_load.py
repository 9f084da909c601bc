"""Saves to an object store, and loads from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from muster.sdk.saves import manifest
from tests.unit.sdk.saves.conftest import BASE, PREFIX, Job, read, text


def test_checkpoint_is_stored_with_a_manifest_and_loaded_in_the_next_attempt(job: Job) -> None:
    saved = muster.save_checkpoint(40, text("weights"), cursor="c40", skipped=["a/7"])
    assert saved == muster.Checkpoint(f"{BASE}/step-00000040-attempt-1", 40)
    assert job.objects() == ["step-00000040-attempt-1/manifest.json", "step-00000040-attempt-1/rank-00000"]
    stored = job.bucket.objects["bucket/ckpt/train-uid/step-00000040-attempt-1/manifest.json"][0]
    said = json.loads(stored)
    assert {each: said[each] for each in ("version", "job", "uid", "attempt", "step", "worldSize", "cursor")} == {
        "version": 1, "job": "train", "uid": "uid", "attempt": 1, "step": 40, "worldSize": 1, "cursor": "c40",
    }  # fmt: skip
    (report,) = job.controller.confirmed
    assert (report["path"], report["step"], report["bytes"], report["shards"]) == (saved.path, 40, 7, 1)
    assert report["manifest"] == manifest.digest(stored)
    assert os.listdir(job.folder / "copies") == []
    job.start(2)
    loaded = muster.load_checkpoint(lambda files: (read(files), files.cursor, files.skipped))
    assert loaded == (("weights", "c40", ("a/7",)), saved)
    assert job.controller.outcomes[0]["bytesFrom"] == {"bucket": 7, "peer": 0, "disk": 0}
    assert muster.last_checkpoint() == saved


def test_folder_keeps_its_names_below_the_checkpoint(job: Job) -> None:
    def write(path: str) -> None:
        os.makedirs(f"{path}/optimizer")
        Path(path, "model").write_text("m")
        Path(path, "optimizer", "state").write_text("o")

    muster.save_checkpoint(1, write)
    job.start(2)

    def load(files: object) -> list[str]:
        root = Path(os.fspath(files))  # type: ignore[call-overload]
        return [(root / "model").read_text(), (root / "optimizer/state").read_text()]

    loaded = muster.load_checkpoint(load)
    assert loaded is not None
    assert loaded[0] == ["m", "o"]


def test_job_without_a_checkpoint_starts_fresh(job: Job) -> None:
    assert muster.load_checkpoint(read) is None
    assert job.controller.outcomes == []


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda job: job.change("2-attempt-1/rank-00000", lambda data: data[:-1]), "Size"),
        (lambda job: job.change("2-attempt-1/rank-00000", lambda data: bytes([data[0] ^ 1]) + data[1:]), "Checksum"),
        (lambda job: job.bucket.objects.pop(f"{PREFIX}/step-00000002-attempt-1/rank-00000"), "Missing"),
        (lambda job: job.bucket.objects.pop(f"{PREFIX}/step-00000002-attempt-1/manifest.json"), "Missing"),
        (lambda job: job.change("2-attempt-1/manifest.json", lambda data: data + b" "), "Manifest"),
    ],
    ids=["truncated", "bit flipped", "missing shard", "missing manifest", "another manifest"],
)
def test_bad_checkpoint_is_reported_and_the_next_older_one_is_loaded(
    job: Job, damage: Callable[[Job], object], reason: str
) -> None:
    good = muster.save_checkpoint(1, text("good"))
    muster.save_checkpoint(2, text("bad!"))
    damage(job)
    job.start(2)
    loaded = muster.load_checkpoint(read)
    assert loaded == ("good", good)
    assert [(each["ok"], each.get("reason")) for each in job.controller.outcomes] == [(False, reason), (True, None)]
    assert job.controller.outcomes[0]["message"]
