"""`muster etcd config` and the options of `muster doctor` about etcd: input that cannot be used, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.cli.main import run


@pytest.mark.parametrize("url", ["second:2379", "https://", "https://a:1,https://b:1", "https://a:1#x", "https://a/p"])
def test_address_that_kube_apiserver_would_misread_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["etcd", "config", "--events-etcd", url]) == 2
    assert "separated by semicolons" in capsys.readouterr().err


def test_address_of_the_second_etcd_splits_a_small_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["etcd", "config", "--nodes", "5", "--events-etcd", "https://a:1;https://b:1", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert "--etcd-servers-overrides=/events#https://a:1;https://b:1" in data["kubeApiserver"]["flags"]
    assert data["size"] == {"nodes": 5, "pods": 150, "eventsPerSecond": 0.25}


def test_page_says_whether_events_move(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["etcd", "config", "--nodes", "5"]) == 0
    assert "Events stay in the main etcd" in capsys.readouterr().out
    assert run(["etcd", "config", "--nodes", "50000"]) == 0
    page = capsys.readouterr().out
    assert "WARNING etcd 'main'" in page
    assert "6. To go back" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--etcd-ca", "{file}"], "add --etcd-metrics URL"),
        (["--etcd-metrics", "https://a:1", "--etcd-cert", "{file}"], "--etcd-key"),
        (["--etcd-metrics", "https://a:1", "--etcd-ca", "{file}"], "cannot be used"),
        (["--etcd-metrics", "https://a:1", "--etcd-ca", "{file}.missing"], "check the paths"),
        (["--etcd-metrics", "a:1"], "https://HOST:2379/metrics"),
    ],
)
def test_options_about_etcd_are_checked_before_the_cluster_is_asked(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("not PEM")
    assert run(["doctor", *(word.format(file=file) for word in options)]) == 2
    assert said in capsys.readouterr().err
