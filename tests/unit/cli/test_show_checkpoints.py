"""Issue 14.7: `muster checkpoints` lists checkpoints, says why one is not used, and compares bytes on request."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from muster.cli.errors import ExitCode
from muster.cli.main import run
from muster.sdk import records
from muster.sdk.data import stores
from muster.sdk.data.access import Access
from muster.sdk.data.file_store import FileStore
from muster.sdk.saves import manifest
from tests.support import onejob
from tests.unit.cli.test_said import state as state


class Cluster:
    """An API server with one job, whose status the test writes."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {"phase": "Running", "attempt": 2}

    async def answer(self, request: web.Request) -> web.Response:
        if request.path != onejob.JOB:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return web.json_response(onejob.job(**self.status))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster()
    with onejob.served(found.answer) as server:
        monkeypatch.setenv("KUBECONFIG", str(onejob.write_kubeconfig(tmp_path, server)))
        yield found


def saved(folder: Path, step: int, content: bytes = b"weights") -> dict[str, Any]:
    """A checkpoint in a folder with its manifest, and its entry in the status."""
    path = folder / f"step-{step:08d}-attempt-1"
    path.mkdir(parents=True)
    (path / "model.pt").write_bytes(content)
    shard = manifest.Shard("model.pt", 0, len(content), hashlib.sha256(content).hexdigest())
    data = manifest.encode(manifest.new(step, False, None, (), [shard]))
    where = Path(records.manifest_path(str(folder), path.name))
    where.parent.mkdir(exist_ok=True)
    where.write_bytes(data)
    entry = {"path": str(path), "step": step, "attempt": 1, "time": "2026-01-01T00:00:00Z"}
    return {**entry, "bytes": len(content), "shards": 1, "manifest": manifest.digest(data)}


def shown(capfd: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = run(["checkpoints", "train", *flags])
    said = capfd.readouterr()
    return code, said.out, said.err


def test_the_list_names_the_next_one_and_the_quarantined_one(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    good, older = saved(tmp_path / "c", 20), saved(tmp_path / "c", 10)
    bad = {"path": "/c/30", "step": 30, "attempt": 2, "reason": "Checksum", "message": "attempt 3, slot 1: rank 9"}
    bad["time"] = "2026-01-01T00:00:00Z"
    cluster.status |= {
        "checkpointDir": str(tmp_path / "c"), "lastCheckpoint": good, "checkpoints": [good, older],
        "quarantinedCheckpoints": [bad],
    }  # fmt: skip
    code, out, error = shown(capfd)
    assert code == ExitCode.DONE
    assert "may have removed older ones (`keep`)" in error
    assert re.search(r"step 30 was quarantined \S+ ago: attempt 3", out)
    lines = out.splitlines()
    assert lines[0].split() == ["STEP", "SIZE", "SHARDS", "ATTEMPT", "CONFIRMED", "VERIFIED", "STATE", "PATH"]
    assert [line.split()[0] for line in lines[1:4]] == ["20", "10", "30"]
    assert "next" in lines[1]
    assert "quarantined: Checksum" in lines[3]
    assert "attempt 3, slot 1: rank 9" in out
    code, out, _ = shown(capfd, "-o", "json")
    data = json.loads(out)
    assert [(each["step"], each["state"]) for each in data["checkpoints"]] == [
        (20, "Confirmed"), (10, "Confirmed"), (30, "Quarantined")
    ]  # fmt: skip
    assert data["checkpoints"][0]["manifest"] == good["manifest"]


def test_verify_finds_what_does_not_match_the_confirmed_manifest(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "c"
    entries = [saved(folder, step) for step in (60, 50, 40, 30, 20)]
    cluster.status |= {"lastCheckpoint": entries[0], "checkpoints": entries}
    code, out, _ = shown(capfd, "--verify")
    assert code == ExitCode.DONE
    assert out.count("intact") == 5

    (Path(entries[0]["path"]) / "model.pt").write_bytes(b"WEIGHTS")
    (Path(entries[1]["path"]) / "model.pt").write_bytes(b"weight")
    (Path(entries[2]["path"]) / "model.pt").unlink()
    shutil.rmtree(entries[4]["path"])  # as jobs do with old ones
    entries[3]["manifest"] = "0" * 64  # the manifest was replaced after the confirmation
    code, out, _ = shown(capfd, "--verify", "-o", "json")
    assert code == ExitCode.FAILED
    checks = [each["check"]["reason"] for each in json.loads(out)["checkpoints"]]
    assert checks == ["Checksum", "Size", "Missing", "Manifest", "Gone"]
    cluster.status |= {
        "lastCheckpoint": entries[3] | {"manifest": ""},
        "checkpoints": [entries[3] | {"manifest": ""}, entries[4]],
    }
    code, out, _ = shown(capfd, "--verify")
    assert code == ExitCode.DONE, "an old checkpoint may be gone"
    assert "removed" in out.splitlines()[2]
    cluster.status |= {"lastCheckpoint": entries[4], "checkpoints": [entries[4]]}
    code, out, _ = shown(capfd, "--verify")
    assert code == ExitCode.FAILED, "the next one may not"


def test_verify_reads_object_stores_with_the_users_credentials(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Access]] = []

    def open_store(url: str, access: Access, deadline_s: float) -> FileStore:
        opened.append((url, access))
        return FileStore(str(tmp_path / "store" / url.partition("://")[2]))

    monkeypatch.setattr(stores, "open_store", open_store)
    entries = []
    for step in (30, 20, 10):
        entry = saved(tmp_path / "store" / "bucket", step)
        folder = Path(entry["path"])
        Path(records.manifest_path(str(folder.parent), folder.name)).rename(folder / "manifest.json")
        entries.append(entry | {"path": f"s3://bucket/{folder.name}"})
    (tmp_path / "store" / "bucket" / "step-00000020-attempt-1" / "model.pt").write_bytes(b"WEIGHTS")
    (tmp_path / "store" / "bucket" / "step-00000010-attempt-1" / "manifest.json").unlink()
    cluster.status |= {"lastCheckpoint": entries[0], "checkpoints": entries}
    code, out, _ = shown(capfd, "--verify", "-o", "json", "--credentials", str(tmp_path))
    assert code == ExitCode.FAILED
    assert [each["check"]["reason"] for each in json.loads(out)["checkpoints"]] == ["", "Checksum", "Gone"]
    assert [url for url, _ in opened] == [each["path"] for each in entries]
    assert {access.credentials_dir for _, access in opened} == {str(tmp_path)}


def test_a_checkpoint_that_cannot_be_read_here_is_not_called_intact(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = ("/nowhere/at/all/step-1", "relative/step-2", "s3a://bucket/step-3", "s3://bucket/x?region=eu")
    entries = [{"path": path, "step": 9 - n, "attempt": 1} for n, path in enumerate(paths)]
    cluster.status |= {"lastCheckpoint": entries[0], "checkpoints": entries}
    code, out, _ = shown(capfd, "--verify", "-o", "json")
    assert code == ExitCode.FAILED
    assert [each["check"]["reason"] for each in json.loads(out)["checkpoints"]] == ["Read"] * 4


def test_a_job_without_checkpoints_and_one_that_does_not_exist(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shown(capfd)
    assert (code, out) == (ExitCode.DONE, "")
    assert "has no confirmed checkpoint" in err
    assert run(["checkpoints", "other"]) == ExitCode.NOT_FOUND
    assert run(["checkpoints", "train", "--credentials", "/tmp"]) == ExitCode.BAD_INPUT
