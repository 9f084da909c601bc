"""The newest confirmed checkpoint in an object store is found by its record, although the job or its status is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

import muster
from muster.sdk.saves import find
from tests.unit.sdk.saves.conftest import BASE, Job, text


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert find.main(arguments) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["found"]


def test_the_newest_confirmed_checkpoint_is_found(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys, BASE, "--uid", "uid") is None
    muster.save_checkpoint(40, text("a"))
    job.start(2)
    muster.save_checkpoint(20, text("b"))
    expected = {"path": f"{BASE}/step-00000020-attempt-2", "job": "train", "uid": "uid", "step": 20}
    assert found(capsys, BASE, "--uid", "uid") == expected
    root = BASE.rpartition("/")[0]
    assert found(capsys, root, "--job", "train", "--namespace", "ns") == expected
    assert found(capsys, root, "--job", "train", "--namespace", "other") is None
    assert found(capsys, BASE, "--uid", "another") is None


def test_incomplete_and_unconfirmed_checkpoints_do_not_count(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    muster.save_checkpoint(40, text("a"))
    muster.save_checkpoint(50, text("b"))
    key = next(each for each in job.bucket.objects if each.endswith("step-00000050-attempt-1/manifest.json"))
    del job.bucket.objects[key]
    assert found(capsys, BASE, "--uid", "uid")["step"] == 40
