"""Issue 11.21: what a node says about the checkpoints that an attempt may start from, and about their folder."""

from __future__ import annotations

import base64
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.kube.connection.pki import CertificateAuthority
from muster.sdk import records
from muster.trainingjobs.supervisor.attempts import checkpoints as look
from muster.trainingjobs.supervisor.attempts.checkpoints import Look, is_there
from muster.trainingjobs.supervisor.settings import Settings
from tests.support.waiting import TIMEOUT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer waits for the check, however busy this machine is."""
    monkeypatch.setattr(look, "AT_ONCE_S", TIMEOUT_S)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    ca = base64.b64encode(CertificateAuthority.create().certificate).decode()
    pod = {
        "MUSTER_URL": "https://127.0.0.1:1", "MUSTER_CA_DATA": ca, "MUSTER_TOKEN_FILE": "/none", "MUSTER_SLOT": "0",
        "MUSTER_NAMESPACE": "ns", "MUSTER_JOB": "job", "MUSTER_JOB_UID": "uid", "POD_NAME": "job-0-1",
        "POD_UID": "pod", "POD_IP": "127.0.0.1", "MUSTER_WORKDIR": str(tmp_path),
    }  # fmt: skip
    return lambda **more: Settings({**pod, **more})


def test_only_what_is_known_to_be_missing_counts_as_missing(tmp_path: Path, settings: Callable[..., Settings]) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "latest").symlink_to("here")
    (tmp_path / "dangling").symlink_to("gone")
    too_long = "x" * 300
    paths = ["here", str(tmp_path / "gone"), "file/below", "s3://bucket/key", too_long, "latest", "dangling"]
    said = Look(paths, settings(), lambda: None).answer()
    assert said == {"looked": dict(zip(paths, (True, False, False, None, None, True, False), strict=True))}


def test_a_link_that_leads_nowhere_is_not_a_checkpoint_to_start_from(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("gone")
    assert records.at(str(tmp_path / "dangling")) is None
    records.write(str(tmp_path), records.Record("dangling", 3, 1, "uid", "job", "ns", 1.0, confirmed=2.0))
    assert list(records.confirmed(str(tmp_path))) == []


def test_a_step_that_a_status_cannot_hold_is_not_taken_from_disk(tmp_path: Path) -> None:
    assert records.step_in(f"step-{2**63 - 1}-attempt-1") == 2**63 - 1
    assert records.step_in(f"step-{2**63}-attempt-1") == 0
    assert records.step_in(f"step-{'9' * 5000}-attempt-1") == 0
    records.write(str(tmp_path), records.Record("x", 2**63, 1, "uid", "job", "ns", 1.0))
    assert records.read(str(tmp_path)) == []


def test_a_folder_that_does_not_answer_is_not_waited_for_without_end(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), threading.Event()

    def hangs(path: str) -> bool | None:
        asked.set()
        answers.wait(TIMEOUT_S)
        return is_there(path)

    monkeypatch.setattr(look, "is_there", hangs)
    monkeypatch.setattr(look, "AT_ONCE_S", 0.0)
    ended = threading.Event()
    one = Look(["/nfs/step-1"], settings(), ended.set)
    assert asked.wait(TIMEOUT_S)
    assert one.answer() == {"looking": True}
    assert not one.complete(time.monotonic())
    assert one.complete(time.monotonic() + look.ANSWER_S)
    assert one.answer() == {"looked": {"/nfs/step-1": None}}
    answers.set()
    assert ended.wait(TIMEOUT_S)


def test_a_node_without_anything_to_look_for_says_so_at_once(settings: Callable[..., Settings]) -> None:
    assert Look([], settings(), lambda: None).answer() == {"looked": {}}


def test_a_folder_that_can_be_written_is_created_and_left_empty(
    tmp_path: Path, settings: Callable[..., Settings]
) -> None:
    said = Look([], settings(MUSTER_CHECKPOINT_DIR="ckpt/job-uid"), lambda: None).answer()
    assert said == {"looked": {}}
    assert os.listdir(tmp_path / "ckpt" / "job-uid") == []


@pytest.mark.parametrize(
    ("folder", "number"),
    [
        ("file", errno.EEXIST),
        ("file/below", errno.ENOTDIR),
        ("dangling/below", errno.ENOENT),
        ("x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, settings: Callable[..., Settings], folder: str, number: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("gone")
    said = Look([], settings(MUSTER_CHECKPOINT_DIR=folder), lambda: None).answer()
    assert said["unwritable"] == {"path": str(tmp_path / folder), "errno": number, "uid": os.geteuid()}


def test_a_url_is_not_tried_as_a_folder(tmp_path: Path, settings: Callable[..., Settings]) -> None:
    assert Look([], settings(MUSTER_CHECKPOINT_DIR="hdfs://host/run"), lambda: None).answer() == {"looked": {}}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_an_error_that_may_pass_is_not_a_refusal(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(path: str, **options: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("muster.trainingjobs.supervisor.attempts.writable.os.makedirs", fails)
    assert Look([], settings(MUSTER_CHECKPOINT_DIR="ckpt"), lambda: None).answer() == {"looked": {}}
