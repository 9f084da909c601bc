"""A program with checkpoints in an object store in memory, and a controller in this process that confirms them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.sdk import reports
from muster.sdk.errors import StaleAttempt
from muster.sdk.saves import background, bucket, own, process
from tests.support.memorystore import Bucket, Killed, MemoryStore

BASE = "memory://bucket/ckpt/train-uid"
PREFIX = BASE.partition("://")[2]


@dataclasses.dataclass
class Controller:
    """What the controller does with reports of checkpoints, and with outcomes of restores."""

    attempt: int = 1
    steps: list[int] = dataclasses.field(default_factory=list)
    confirmed: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    problems: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outcomes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def progress(self, report: dict[str, Any]) -> None:
        """Take a report at once: a thread for each process of a test would outlive it."""
        with contextlib.suppress(StaleAttempt):
            self.exchange("/v1/report", report, 1.0)

    def exchange(self, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if "checkpoint" in body:
            self.before()
        if muster.attempt() != self.attempt:
            raise StaleAttempt(f"attempt {muster.attempt()} is over, the job is at attempt {self.attempt}")
        if path == "/v1/restore":
            return self._restore(body)
        if "step" in body:
            self.steps.append(body["step"])
        if "checkpoint" in body:
            self.confirmed.insert(0, body["checkpoint"])
            self.after()
        if "checkpointProblem" in body:
            self.problems.append(body["checkpointProblem"])
        return {}

    def _restore(self, body: dict[str, Any]) -> dict[str, Any]:
        self.outcomes.append(body)
        if body["ok"]:
            return {"verdict": "go"}
        paths = [each["path"] for each in self.confirmed]
        older = self.confirmed[paths.index(body["path"]) + 1 :][:1]
        return {"verdict": "older", "checkpoint": older[0]} if older else {"verdict": "none"}


@dataclasses.dataclass
class Job:
    """The job's program: `start` begins a new process of an attempt."""

    monkeypatch: pytest.MonkeyPatch
    bucket: Bucket
    controller: Controller
    folder: Path

    def start(self, attempt: int, rank: int = 0, ranks: int = 1, current: bool = True) -> None:
        env = self.monkeypatch.setenv
        env("MUSTER_ATTEMPT", str(attempt))
        env("RANK", str(rank))
        env("WORLD_SIZE", str(ranks))
        if current:
            self.controller.attempt = attempt
        newest = self.controller.confirmed[0] if self.controller.confirmed else {}
        env("MUSTER_CHECKPOINT", newest.get("path", ""))
        env("MUSTER_CHECKPOINT_STEP", str(newest.get("step", 0)))
        env("MUSTER_CHECKPOINT_MANIFEST", newest.get("manifest", ""))
        for module, name in ((own, "_committed"), (process, "_process"), (background, "_current")):
            self.monkeypatch.setattr(module, name, None)
        self.monkeypatch.setattr(reports, "_reporter", None)

    def kill_after(self, operations: int) -> None:
        """Die at the write after so many: of the store, or the confirmation before or after the controller wrote it."""
        left = operations

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        self.bucket.before = lambda operation, key: count() if operation in ("put", "delete") else None
        self.controller.before = self.controller.after = count

    def revive(self) -> None:
        self.bucket.revive()
        self.controller.before = self.controller.after = lambda: None

    def objects(self) -> list[str]:
        """The objects below the job's folder, without records."""
        prefix = BASE.partition("://")[2] + "/"
        found = [key[len(prefix) :] for key in self.bucket.objects if key.startswith(prefix)]
        return sorted(key for key in found if not key.startswith(".muster/"))

    def names(self) -> list[str]:
        """Names of checkpoints that have any object."""
        return sorted({key.partition("/")[0] for key in self.objects()})

    def change(self, ending: str, change: Callable[[bytes], bytes]) -> None:
        """Damage the only object whose key ends so."""
        key = next(key for key in self.bucket.objects if key.endswith(ending))
        self.bucket.objects[key] = (change(self.bucket.objects[key][0]), self.bucket.objects[key][1])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return new_job(tmp_path, monkeypatch)


def new_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    objects, controller = Bucket(), Controller()
    monkeypatch.setattr(bucket, "open_bucket", lambda url, deadline_s: bucket.Bucket(MemoryStore(objects, url), url))
    monkeypatch.setattr(reports, "exchange", controller.exchange)
    monkeypatch.setattr(reports.Reporter, "progress", lambda self, report: controller.progress(report))
    for name, value in (
        ("MUSTER_URL", "https://controller"), ("MUSTER_JOB", "train"), ("MUSTER_JOB_UID", "uid"),
        ("MUSTER_NAMESPACE", "ns"), ("MUSTER_CHECKPOINT_DIR", BASE), ("MUSTER_SAVE_DIR", str(folder / "copies")),
        ("MUSTER_RESTORE_DIR", str(folder / "restore")), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    job = Job(monkeypatch, objects, controller, folder)
    job.start(1)
    return job


def text(content: str) -> Callable[[str], object]:
    return lambda path: Path(path).write_text(content)


def read(files: Any) -> str:
    return Path(files.path).read_text()
