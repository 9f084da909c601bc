"""Issue 14: a wrong endpoint is reported while a call waits, and does not cost the call's whole deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sdk.data import Access, Store, Unavailable
from tests.support.buckets import secret_folder
from tests.support.faultyproxy import Fault, FaultyProxy

OpenStore = Callable[..., Store]
REFUSED = "http://127.0.0.1:1"
UNRESOLVABLE = f"http://{'x' * 64}.test:9000"  # a label is too long, so no server is asked


class Clock:
    """Time that passes only while the code sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr("time.monotonic", lambda: self.now)
        patch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    return secret_folder(tmp_path / "secret", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="CaNaRy")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (REFUSED, "(connection refused)"),
        (UNRESOLVABLE, "(the host's name does not resolve)"),
        ("https://PROXY", "(TLS failed: "),
    ],
)
def test_wrong_endpoint_fails_after_a_minute_with_its_cause(
    opened: OpenStore, clock: Clock, credentials: str, proxy: FaultyProxy, endpoint: str, words: str
) -> None:
    endpoint = endpoint.replace("PROXY", proxy.address.partition("//")[2])
    store = opened("s3://bucket", Access(endpoint, "", credentials), 600)
    with pytest.raises(Unavailable) as error:
        store.read("x")
    assert 45 < clock.now - 1000 <= 60
    assert f"s3://bucket/x: no connection to {endpoint} within" in str(error.value)
    assert words in str(error.value)


def test_store_that_answered_before_has_the_whole_deadline(
    opened: OpenStore, s3_url: str, s3: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(s3_url, s3, 600)
    store.put("x", b"bytes")
    clock = Clock(monkeypatch)
    monkeypatch.setattr(store._clients, "endpoint", REFUSED)  # type: ignore[attr-defined]
    store.close()  # the next client has the new endpoint
    with pytest.raises(Unavailable, match=r"no success within .*\(last: connection refused\)"):
        store.read("x")
    assert clock.now - 1000 > 580


def test_refusal_counts_as_an_answer(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(s3_url, behind_proxy, 200)
    proxy.add(Fault(times=None, status=503))
    clock = Clock(monkeypatch)
    with pytest.raises(Unavailable, match="no success within"):
        store.read("x")
    monkeypatch.setattr(store._clients, "endpoint", REFUSED)  # type: ignore[attr-defined]
    store.close()
    clock.now = 5000.0
    with pytest.raises(Unavailable, match="no success within"):
        store.head("x")
    assert clock.now > 5180


def test_a_call_without_success_writes_a_line_a_minute(
    opened: OpenStore,
    clock: Clock,
    credentials: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.sdk.data.attempts.FIRST_ANSWER_S", 314.0)  # pauses are random, up to 10 s
    store = opened("s3://bucket", Access(REFUSED, "", credentials), 600)
    with pytest.raises(Unavailable):
        store.read("x")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"muster: s3://bucket: still no connection to {REFUSED} after ")
    assert "s (connection refused); trying until " in lines[0]
    assert "CaNaRy" not in "".join(lines)


def test_a_short_interruption_writes_nothing(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    store = opened(s3_url, behind_proxy, 600)
    proxy.add(Fault(times=2, status=500))
    store.put("x", b"bytes")
    assert capfd.readouterr().err == ""
