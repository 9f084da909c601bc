"""Issue 14.1: before the first attempt, one node checks whether the job's object store is safe for checkpoints."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.api.training_job_status import Progress
from muster.trainingjobs.plan import RecordEvent
from muster.trainingjobs.snapshot import Unwritable
from muster.trainingjobs.supervisor.attempts import store_probe
from muster.trainingjobs.supervisor.attempts.checkpoints import Look
from muster.trainingjobs.supervisor.settings import Settings
from tests.unit.trainingjobs.test_look import settings as settings
from tests.unit.trainingjobs.world import World, make_job, moment

URL = "s3://bucket/run/job-1a2b3c4d"
PROGRAM = """
import json, os, sys, time
time.sleep(float(os.environ.get("SLEEP_S") or 0))
print("a library prints this")
print(os.environ["ANSWER"] if sys.argv[1].startswith("s3://") and "--json" in sys.argv else "wrong arguments")
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any] | None]:
    """Runs the check with a program that gives this answer."""
    (tmp_path / "answers.py").write_text(PROGRAM)
    monkeypatch.setattr(store_probe, "SDK", str(tmp_path))
    monkeypatch.setattr(store_probe, "PROGRAM", "answers")

    def ask(answer: dict[str, Any] | str, deadline_s: float = 20.0) -> dict[str, Any] | None:
        monkeypatch.setenv("ANSWER", answer if isinstance(answer, str) else json.dumps(answer))
        return store_probe.store_refusal(URL, deadline_s)

    return ask


def test_a_store_that_overwrites_is_refused(probe: Callable[..., dict[str, Any] | None]) -> None:
    said = {"ok": False, "reason": "NoCreateOnly", "message": "it overwrites"}
    assert probe(said) == {"path": URL, "reason": "NoCreateOnly", "message": "it overwrites"}
    assert probe({"ok": True, "reason": "Safe", "message": "safe"}) is None


@pytest.mark.slow
def test_a_result_that_is_not_final_is_not_a_refusal(probe: Callable[..., dict[str, Any] | None]) -> None:
    for reason in ("Unavailable", "ObstoreMissing", "SomethingNew"):
        assert probe({"ok": False, "reason": reason, "message": "?"}) is None
    for text in ("not json", "[]", "{}", "null"):
        assert probe(text) is None


def test_missing_rights_are_a_refusal_only_with_settings_of_the_job(
    probe: Callable[..., dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"ok": False, "reason": "NoCredentials", "message": "none"}
    assert probe(said) is None, "the program may have credentials of its own"
    monkeypatch.setenv("MUSTER_CHECKPOINT_CREDENTIALS", "/var/run/muster-store/checkpoint")
    assert probe(said) == {"path": URL, "reason": "NoCredentials", "message": "none"}


def test_a_store_that_does_not_answer_in_time_is_not_refused(
    probe: Callable[..., dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEEP_S", "60")
    assert probe({"ok": False, "reason": "NoCreateOnly", "message": ""}, deadline_s=0.3) is None


@pytest.mark.parametrize(
    ("url", "asked"), [(URL, True), ("s3a://bucket/x", False), ("s3://bucket/x?region=eu", False), ("/ckpt", False)]
)
def test_only_slot_0_examines_only_stores(
    url: str, asked: bool, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(
        "muster.trainingjobs.supervisor.attempts.checkpoints.store_refusal", lambda each, _: urls.append(each)
    )
    monkeypatch.setattr("muster.trainingjobs.supervisor.attempts.checkpoints.stored", lambda *_: None)
    folder = url if "://" in url else str(tmp_path / "ckpt")
    for slot in ("0", "1"):
        look = Look([], settings(MUSTER_CHECKPOINT_DIR=folder, MUSTER_SLOT=slot), lambda: None)
        deadline = time.monotonic() + 20
        while not look.complete(time.monotonic()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "unwritable" not in look.answer()
    assert urls == ([url] if asked else [])


def test_a_store_that_has_the_jobs_checkpoints_is_not_examined_again(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(
        "muster.trainingjobs.supervisor.attempts.checkpoints.store_refusal", lambda each, _: urls.append(each)
    )
    monkeypatch.setattr("muster.trainingjobs.supervisor.attempts.checkpoints.stored", lambda *_: None)
    for path in (f"{URL}/step-00000010-attempt-1", "s3://bucket/run/job-1a2b3c4d-other/step-00000010-attempt-1"):
        look = Look([path], settings(MUSTER_CHECKPOINT_DIR=URL), lambda: None)
        deadline = time.monotonic() + 20
        while not look.complete(time.monotonic()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert urls == [URL], "another job's checkpoint says nothing about the rights of this one"


def refused(**spec: Any) -> World:
    world = World(make_job(2, checkpoint={"path": "s3://bucket/run"}, **spec))
    world.refused_store = Unwritable(path=URL, reason="NoCreateOnly", message="the store overwrites objects")
    return world


def test_the_job_fails_before_its_ranks_start() -> None:
    world = refused()
    world.until("Failed")
    assert world.directed_run == set()
    assert world.status.faults[-1].rule == "cannot-write"
    assert "NoCreateOnly" in world.status.message
    assert "the store overwrites objects" in world.status.message
    assert "--store-secret" in world.status.message


def test_a_job_that_has_saved_before_runs_on_and_says_so() -> None:
    world = World(make_job(2, checkpoint={"path": "s3://bucket/run"}, backoffLimit=3)).started()
    world.checkpoint(10)
    world.refused_store = Unwritable(path=URL, reason="Forbidden", message="403")
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=2)
    assert [each.reason for each in world.actions(RecordEvent) if each.warning and each.reason == "NotWritable"]


NO_BUCKET = Unwritable(path="s3://none/data", reason="WrongBucket", message="no such bucket", data=True)


def test_data_that_cannot_be_read_fails_the_job_before_its_ranks_start() -> None:
    """Such a job used up its restarts with tracebacks."""
    world = World(make_job(2, data={"url": NO_BUCKET.path}))
    world.refused_store = NO_BUCKET
    world.until("Failed")
    assert world.directed_run == set()
    assert world.status.faults[-1].rule == "cannot-read-data"
    for text in ("s3://none/data (WrongBucket)", "no such bucket", "spec.data"):
        assert text in world.status.message


def test_a_job_that_could_read_its_data_before_runs_on_and_says_so() -> None:
    world = World(make_job(2, data={"url": NO_BUCKET.path}, backoffLimit=3)).started()
    world.progress = Progress(step=10, time=moment(world.now), attempt=1)
    world.step()
    world.refused_store = NO_BUCKET
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=2)
    assert [each.reason for each in world.actions(RecordEvent) if each.reason == "DataNotReadable"]


@pytest.mark.parametrize(
    ("paths", "changed", "asked"),
    [
        ([], {}, True),
        ([], {"MUSTER_CHECKPOINT_DIR": URL}, True),
        ([], {"MUSTER_SLOT": "1"}, False),
        ([], {"MUSTER_DATA_URL": "file:///data"}, False),
        ([f"{URL}/step-00000010-attempt-1"], {"MUSTER_CHECKPOINT_DIR": URL}, False),
    ],
    ids=["no-checkpoints", "no-progress", "other-slot", "folder", "has-saved"],
)
def test_slot_0_examines_the_data_until_the_job_has_saved(
    paths: list[str],
    changed: dict[str, str],
    asked: bool,
    settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "muster.trainingjobs.supervisor.attempts.checkpoints"
    refusal = {"path": NO_BUCKET.path, "reason": "WrongBucket", "message": "no such bucket", "data": True}
    monkeypatch.setattr(f"{module}.store_refusal", lambda *_: None)
    monkeypatch.setattr(f"{module}.stored", lambda *_: None)
    monkeypatch.setattr(f"{module}.data_refusal", lambda *_: refusal)
    look = Look(paths, settings(**{"MUSTER_DATA_URL": NO_BUCKET.path, **changed}), lambda: None)
    deadline = time.monotonic() + 20
    while not look.complete(time.monotonic()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert look.answer().get("unwritable") == (refusal if asked else None)


def test_data_is_examined_with_its_own_settings(
    probe: Callable[..., dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"ok": False, "reason": "Forbidden", "message": "403"}
    monkeypatch.setenv("MUSTER_CHECKPOINT_CREDENTIALS", "/var/run/muster-store/checkpoint")
    assert probe(said) is not None
    assert store_probe.data_refusal(URL, 20.0) is None, "the program may have credentials of its own for the data"
    monkeypatch.setenv("MUSTER_DATA_CREDENTIALS", "/var/run/muster-store/data")
    assert store_probe.data_refusal(URL, 20.0) == {"path": URL, "reason": "Forbidden", "message": "403", "data": True}


def test_a_bad_mount_of_one_node_is_not_a_bad_store() -> None:
    world = World(make_job(2, checkpoint={"path": "/c"}))
    world.unwritable = {"n0": errno.EROFS}
    world.until("Running")
    assert world.status.faults[-1].rule == "cannot-write-here"


OWN = {"path": f"{URL}/step-00000010-attempt-1", "job": "job", "uid": "u", "step": 10}


@pytest.mark.parametrize(
    ("paths", "changed", "searched"),
    [
        ([], {}, [URL]),
        ([OWN["path"]], {}, []),
        ([], {"MUSTER_SLOT": "1"}, []),
        (
            [],
            {"MUSTER_CHECKPOINT_FROM_JOB": "gone", "MUSTER_CHECKPOINT_ROOT": "s3://bucket/run"},
            [URL, "s3://bucket/run"],
        ),
    ],
    ids=["status-lost", "status-lists-it", "other-slot", "deleted-job"],
)
def test_checkpoints_that_the_status_does_not_list_are_searched_in_the_store(
    paths: list[str],
    changed: dict[str, str],
    searched: list[str],
    settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job whose status was wiped began at step 0, and its retention then removed the older checkpoints."""
    urls: list[str] = []

    def stored(url: str, search: list[str], deadline_s: float) -> dict[str, Any] | None:
        urls.append(url)
        return OWN if len(urls) == len(searched) else None

    module = "muster.trainingjobs.supervisor.attempts.checkpoints"
    monkeypatch.setattr(f"{module}.store_refusal", lambda *_: None)
    monkeypatch.setattr(f"{module}.stored", stored)
    look = Look(paths, settings(MUSTER_CHECKPOINT_DIR=URL, **changed), lambda: None)
    deadline = time.monotonic() + 20
    while not look.complete(time.monotonic()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert urls == searched
    assert look.answer().get("found") == (OWN if searched else None)
