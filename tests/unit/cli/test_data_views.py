"""Pieces of `muster data`: sizes, sums over nodes, blocks to download, and credentials to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.cli.data.sizes import share, size
from muster.cli.data.source import credentials_to_send
from muster.cli.data.status import by_job
from muster.cli.data.warm import blocks_of
from muster.cli.errors import BadInput
from muster.cli.main import run
from muster.sdk.data.access import Access
from muster.sdk.data.store import ObjectInfo
from muster.sdk.data.wire import BLOCK_BYTES


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KiB"),
        (1536, "1.5 KiB"),
        (100 << 20, "100 MiB"),
        (1023 << 20, "1 GiB"),
        (2 << 40, "2 TiB"),
        (3 << 60, "3072 PiB"),
    ],
)
def test_sizes_have_three_digits_at_most_until_units_end(count: int, text: str) -> None:
    assert size(count) == text


def test_a_share_of_nothing_is_not_a_number() -> None:
    assert (share(1, 3), share(0, 5), share(0, 0)) == ("33%", "0%", "-")


def figures(job: str, bucket: int, peer: int, readers: int = 0) -> dict[str, Any]:
    read = {"bucket": bucket, "peer": peer, "disk": 1 if readers else 0}
    return {"job": job, "name": f"ns/{job}", "readers": readers, "rate_bytes_per_s": 10, "bytes": read}


def test_figures_of_a_job_are_summed_over_nodes_and_idle_accounts_are_left_out() -> None:
    answers = {
        "node-0": {"jobs": [figures("a", 5, 0, readers=2), figures("b", 1, 0), figures("other", 0, 0)]},
        "node-1": {"jobs": [figures("a", 0, 7)]},
    }
    assert by_job(answers) == {
        "a": {
            "name": "ns/a",
            "nodes": 2,
            "readers": 2,
            "rate_bytes_per_s": 20,
            "bytes": {"bucket": 5, "peer": 7, "disk": 1},
        },
        "b": {
            "name": "ns/b",
            "nodes": 1,
            "readers": 0,
            "rate_bytes_per_s": 10,
            "bytes": {"bucket": 1, "peer": 0, "disk": 0},
        },
    }
    assert by_job(answers, "b").keys() == {"b"}


def test_an_object_is_downloaded_in_blocks_and_an_empty_one_not_at_all() -> None:
    objects = [ObjectInfo("empty", 0, "e"), ObjectInfo("large", 2 * BLOCK_BYTES + 5, "l"), ObjectInfo("small", 5, "s")]
    assert [(each.key, each.number, each.block_bytes) for each in blocks_of(objects)] == [
        ("large", 0, BLOCK_BYTES),
        ("large", 1, BLOCK_BYTES),
        ("large", 2, 5),
        ("small", 0, 5),
    ]


def test_only_credentials_of_stores_are_sent_to_a_cache(tmp_path: Path) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SESSION_TOKEN": "", "HOME": "/root", "DATABASE_PASSWORD": "p"}
    assert credentials_to_send(Access(), environment) == {"AWS_ACCESS_KEY_ID": "key"}
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("other\n")
    (tmp_path / "notes").write_text("private")
    assert credentials_to_send(Access(credentials_dir=str(tmp_path)), environment) == {"AWS_ACCESS_KEY_ID": "other"}
    with pytest.raises(BadInput, match="cannot be read"):
        credentials_to_send(Access(credentials_dir=str(tmp_path / "none")), environment)


def test_listing_a_missing_folder_is_not_found_and_an_empty_one_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", "ls", str(tmp_path)], "muster") == 0
    assert f"{tmp_path} has no objects" in capsys.readouterr().err
    (tmp_path / "file").write_text("bytes")
    for name, words in (("none", "does not exist on this machine"), ("file", "is not a folder")):
        assert run(["data", "ls", f"{tmp_path}/{name}"], "muster") == 4
        assert f"error: {tmp_path}/{name} {words}" in capsys.readouterr().err


def test_listing_waits_briefly_for_a_wrong_endpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert run(["data", "ls", "s3://bucket", "--endpoint", "http://127.0.0.1:1"], "muster") == 6
    assert "no connection to http://127.0.0.1:1" in capsys.readouterr().err
    assert now[0] < 20


@pytest.mark.parametrize("command", ["ls", "warm"])
def test_missing_source_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", command], "muster") == 2
    assert "missing argument 'SOURCE'" in capsys.readouterr().err
