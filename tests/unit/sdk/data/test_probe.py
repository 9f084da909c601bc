"""Issue 14: stores without create-only writes are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sdk.data import Access, Forbidden, NoCreateOnly, Store, probe
from tests.support.faultyproxy import Fault, FaultyProxy

OpenStore = Callable[..., Store]
IGNORES_CONDITIONS = Fault(times=None, drop_request_headers=("if-none-match",))


@pytest.mark.parametrize("kind", ["memory", "file", "s3"])
def test_safe_stores_pass_and_nothing_is_left(
    opened: OpenStore, s3_url: str, s3: Access, tmp_path: Path, kind: str
) -> None:
    url = {"memory": "memory://probe", "file": str(tmp_path / "ckpt"), "s3": s3_url}[kind]
    store = opened(url, s3 if kind == "s3" else Access(), 20)
    probe.check(store)
    assert list(store.list()) == []


def test_store_that_overwrites_is_refused(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy
) -> None:
    store = opened(s3_url, behind_proxy, 20)
    proxy.add(IGNORES_CONDITIONS)
    with pytest.raises(NoCreateOnly, match="Use a store that honours If-None-Match"):
        probe.check(store)
    assert list(store.list()) == []


def test_store_that_reports_a_conflict_but_overwrites_is_refused(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy
) -> None:
    """A second write that is lost on its way makes the client compare, so it cannot hide the overwrite."""
    store = opened(s3_url, behind_proxy, 20)
    proxy.add(Fault(method="PUT", drop_request_headers=("if-none-match",)))
    proxy.add(Fault(method="PUT", drop_request_headers=("if-none-match",), lose_answer=True))
    with pytest.raises(NoCreateOnly):
        probe.check(store)


def test_refused_write_is_reported_and_cleaned_up(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy
) -> None:
    store = opened(s3_url, behind_proxy, 20)
    proxy.add(Fault(method="PUT", times=None, status=403, body=b"<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(Forbidden, match="AccessDenied"):
        probe.check(store)
    assert proxy.count("DELETE") == 1


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        (None, 0, "Safe"),
        (IGNORES_CONDITIONS, 1, "NoCreateOnly"),
        (Fault(times=None, status=404, body=b"<Error><Code>NoSuchBucket</Code></Error>"), 1, "WrongBucket"),
        (Fault(times=None, status=500), 3, "Unavailable"),
    ],
)
def test_program_prints_a_reason_code(
    s3_url: str,
    behind_proxy: Access,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Fault | None,
    code: int,
    reason: str,
) -> None:
    monkeypatch.setenv("MUSTER_CHECKPOINT_ENDPOINT", behind_proxy.endpoint)
    monkeypatch.setenv("MUSTER_CHECKPOINT_CREDENTIALS", behind_proxy.credentials_dir)
    if fault is not None:
        proxy.add(fault)
    assert probe.main([s3_url, "--json", "--deadline", "2" if code == 3 else "60"]) == code
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], result["reason"]) == (code == 0, reason)
    assert s3_url in result["message"]
    assert probe.main([s3_url, "--deadline", "2" if code == 3 else "60"]) == code
    output = capsys.readouterr()
    assert s3_url in (output.err if code else output.out)


def test_data_is_only_read(
    opened: OpenStore,
    s3_url: str,
    behind_proxy: Access,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MUSTER_DATA_ENDPOINT", behind_proxy.endpoint)
    monkeypatch.setenv("MUSTER_DATA_CREDENTIALS", behind_proxy.credentials_dir)

    def read() -> tuple[int, str]:
        code = probe.main([s3_url, "--read", "--prefix", "MUSTER_DATA", "--json"])
        return code, json.loads(capsys.readouterr().out)["reason"]

    assert read() == (1, "NotFound"), "a prefix without objects"
    assert proxy.count("PUT") == 0
    opened(s3_url, behind_proxy, 20).put("a.tar", b"x")
    writes = proxy.count("PUT")
    assert read() == (0, "Readable")
    assert (proxy.count("PUT"), proxy.count("DELETE")) == (writes, 0)
    proxy.add(Fault(times=None, status=404, body=b"<Error><Code>NoSuchBucket</Code></Error>"))
    assert read() == (1, "WrongBucket")


def test_program_runs_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster.sdk.data.probe", str(tmp_path / "ckpt"), "--prefix", "X", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["reason"] == "Safe"
    assert found.stderr == ""
