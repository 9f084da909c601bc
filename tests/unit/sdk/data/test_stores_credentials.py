"""Issue 14: credentials come from the Secret's folder, are renewed during a run, and appear in no text."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sdk.data import Access, Forbidden, Store, StoreError, WrongStore, open_store
from tests.support.buckets import secret_folder
from tests.support.faultyproxy import Fault, FaultyProxy
from tests.support.waiting import eventually

OpenStore = Callable[..., Store]
CANARY = "CaNaRy5ecret"


def key(folder: Path, key_id: str, **more: str) -> str:
    return secret_folder(folder, AWS_ACCESS_KEY_ID=key_id, AWS_SECRET_ACCESS_KEY="secret", **more)


def expired(key_id: str, status: int = 400, code: str = "ExpiredToken") -> Fault:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return Fault(authorization=f"Credential={key_id}/", times=None, status=status, body=body)


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
def test_credentials_that_expire_mid_run_are_read_again(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, tmp_path: Path, code: str
) -> None:
    folder = tmp_path / "secret"
    store = opened(s3_url, behind_proxy._replace(credentials_dir=key(folder, "OLD")), 30)
    store.put("x", b"bytes")
    proxy.clear()
    proxy.add(expired("OLD", 403 if code == "InvalidAccessKeyId" else 400, code))
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(store.read("x")))
    reader.start()
    eventually("the store refused the old key", lambda: proxy.count("GET") >= 2)
    key(folder, "NEW")
    reader.join(30)
    assert found == [b"bytes"]
    assert "Credential=NEW/" in proxy.requests[-1].headers["authorization"]


def test_new_files_are_used_before_the_old_credentials_expire(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, tmp_path: Path
) -> None:
    folder = tmp_path / "secret"
    store = opened(s3_url, behind_proxy._replace(credentials_dir=key(folder, "OLD")), 30)
    store.put("x", b"")
    key(folder, "NEW", AWS_SESSION_TOKEN="token")

    def used() -> bool:
        store.head("x")
        headers = proxy.requests[-1].headers
        return "Credential=NEW/" in headers["authorization"] and headers["x-amz-security-token"] == "token"

    eventually("the new key is used", used)


def test_credentials_that_never_worked_fail_at_once(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, tmp_path: Path
) -> None:
    folder = key(tmp_path / "secret", "BAD", AWS_EXPIRATION="2026-01-01T00:00:00Z")
    store = opened(s3_url, behind_proxy._replace(credentials_dir=folder), 30)
    proxy.add(expired("BAD", 403, "InvalidAccessKeyId"))
    with pytest.raises(WrongStore, match=rf"credentials of {folder}.*InvalidAccessKeyId.*2026-01-01.*Renew") as error:
        store.read("x")
    assert error.value.reason == "WrongCredentials"
    assert proxy.count() == 1


def test_credentials_that_stay_expired_are_an_error_after_a_grace_period(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.sdk.data.attempts.CREDENTIALS_GRACE_S", 0.3)
    store = opened(s3_url, behind_proxy, 30)
    store.put("x", b"")
    proxy.add(expired("key"))
    with pytest.raises(WrongStore, match="ExpiredToken"):
        store.read("x")


def test_denied_read_is_repeated_if_the_files_changed(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, tmp_path: Path
) -> None:
    folder = tmp_path / "secret"
    store = opened(s3_url, behind_proxy._replace(credentials_dir=key(folder, "OLD")), 30)
    store.put("x", b"bytes")
    proxy.add(expired("OLD", 403, "AccessDenied"))
    with pytest.raises(Forbidden):
        store.read("x")
    key(folder, "NEW")
    assert store.read("x") == b"bytes"


def test_secret_is_not_mixed_with_the_environment(
    opened: OpenStore,
    s3_url: str,
    behind_proxy: Access,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "FROM-ENVIRONMENT")
    opened(s3_url, behind_proxy, 10).put("x", b"")
    assert "Credential=key/" in proxy.requests[-1].headers["authorization"]
    assert "x-amz-security-token" not in proxy.requests[-1].headers
    opened(s3_url, behind_proxy._replace(credentials_dir=""), 10).head("x")  # no folder: the usual chain
    assert "Credential=FROM-ENVIRONMENT/" in proxy.requests[-1].headers["authorization"]


def test_public_bucket_is_read_without_a_signature(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, tmp_path: Path
) -> None:
    folder = secret_folder(tmp_path / "public", AWS_SKIP_SIGNATURE="true")
    opened(s3_url, behind_proxy._replace(credentials_dir=folder), 10).put("x", b"1")
    assert "authorization" not in proxy.requests[-1].headers


def test_missing_credentials_are_named(
    opened: OpenStore, s3_url: str, s3: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WrongStore, match=r"cannot read the credentials in .*none \(No such file") as error:
        open_store(s3_url, s3._replace(credentials_dir=str(tmp_path / "none")))
    assert error.value.reason == "NoCredentials"
    folder = secret_folder(tmp_path / "half", AWS_ACCESS_KEY_ID="k")
    with pytest.raises(WrongStore, match="has no file AWS_SECRET_ACCESS_KEY: add this key to the Secret"):
        opened(s3_url, s3._replace(credentials_dir=folder), 5).read("x")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(WrongStore, match="there are no credentials") as error:
        opened(s3_url, s3._replace(credentials_dir=""), 5).read("x")
    assert error.value.reason == "NoCredentials"


def azure(folder: Path, **values: str) -> str:
    return secret_folder(folder, AZURE_STORAGE_ACCOUNT_NAME="account", **values)


def google(folder: Path) -> str:
    key = {"type": "service_account", "client_email": "a@b", "private_key": CANARY, "private_key_id": CANARY}
    return secret_folder(folder, GOOGLE_SERVICE_ACCOUNT_KEY=json.dumps(key))


SAS = f"sv=2022-11-02&ss=b&srt=sco&sp=rwdlac&se=2030-01-01T00:00:00Z&sig={CANARY}"


@pytest.mark.parametrize(
    ("url", "write"),
    [
        ("s3://bucket/x", lambda folder: key(folder, "ID", AWS_SESSION_TOKEN=CANARY)),
        ("az://container/x", lambda folder: azure(folder, AZURE_STORAGE_SAS_TOKEN=SAS)),
        ("az://container/x", lambda folder: azure(folder, AZURE_STORAGE_ACCOUNT_KEY=CANARY)),  # not base64
        ("gs://bucket/x", google),
    ],
    ids=["session token", "SAS", "account key", "service account"],
)
@pytest.mark.parametrize("status", [400, 403, 404, 0])
def test_errors_hold_no_credentials(
    opened: OpenStore,
    proxy: FaultyProxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    url: str,
    write: Callable[[Path], str],
    status: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f"<Error><Code>Strange</Code><Message>{CANARY}</Message><StringToSign>{CANARY}</StringToSign></Error>"
    proxy.add(Fault(times=None, status=status, body=echo.encode(), refuse=not status))
    texts, errors = [], []
    for call in CALLS:
        store = opened(url, Access(proxy.address, "us-east-1", write(tmp_path / "secret")), 0.3)
        texts += [repr(store), store.url, repr(vars(store)), repr(vars(vars(store)["_clients"]))]
        errors.append(raised(call, store))
    assert sum(error is not None for error in errors) >= 4
    for error in filter(None, errors):
        texts += [repr(error), repr(vars(error)), *traceback.format_exception(error)]
        texts.append(pickle.dumps(error).decode("latin-1"))
        texts += [repr(each) for each in (error.__context__, error.__cause__)]
    texts += [caplog.text, *capfd.readouterr()]
    assert [text for text in texts if CANARY in text] == []


CALLS: list[Callable[[Store], object]] = [
    lambda store: store.head("k"),
    lambda store: store.read("k"),
    lambda store: list(store.list()),
    lambda store: store.put("k", b""),
    lambda store: store.delete("k"),
]


def raised(call: Callable[[Store], object], store: Store) -> StoreError | None:
    try:
        call(store)
    except StoreError as error:
        return error
    return None


def test_folder_that_is_away_for_a_moment_leaves_the_old_credentials(
    opened: OpenStore, s3_url: str, s3: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.sdk.data.obstore_clients._LOOK_AT_FILES_EVERY_S", 0.0)
    store = opened(s3_url, s3, 10)
    store.put("x", b"1")
    Path(s3.credentials_dir).rename(f"{s3.credentials_dir}-away")
    assert store.read("x") == b"1"
