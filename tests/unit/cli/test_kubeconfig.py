"""The user's kubeconfig keeps what is the user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.cli.errors import CliError, ExitCode
from muster.cli.local.kubeconfig import add_context, remove_context, user_kubeconfig


def config(name: str, current: str | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:1"}}],
        "users": [{"name": name, "user": {"token": f"secret-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name if current is None else current,
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_text(yaml.safe_dump(config("cluster")))
    return path


def test_a_context_is_added_and_taken_out_and_the_rest_stays(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config("work")))
    before = yaml.safe_load(path.read_text())
    assert add_context(path, source, "muster-embedded") is False
    merged = yaml.safe_load(path.read_text())
    assert merged["current-context"] == "work"
    assert [entry["name"] for entry in merged["contexts"]] == ["work", "muster-embedded"]
    assert merged["users"][1] == {"name": "muster-embedded", "user": {"token": "secret-cluster"}}
    assert path.stat().st_mode & 0o077 == 0
    add_context(path, source, "muster-embedded")
    assert yaml.safe_load(path.read_text()) == merged
    assert remove_context(path, "muster-embedded") is True
    assert yaml.safe_load(path.read_text()) == before
    assert remove_context(path, "muster-embedded") is False


def test_without_a_kubeconfig_one_is_made_and_removed_again(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "new" / "config"
    assert add_context(path, source, "muster-x") is True
    assert yaml.safe_load(path.read_text())["current-context"] == "muster-x"
    remove_context(path, "muster-x")
    assert list(path.parent.iterdir()) == []


def test_a_current_context_that_is_ours_is_unset_with_it(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config("work", current="")))
    assert add_context(path, source, "muster-x") is True
    remove_context(path, "muster-x")
    assert yaml.safe_load(path.read_text())["current-context"] == ""


def test_a_linked_kubeconfig_stays_a_link(tmp_path: Path, source: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text(yaml.safe_dump(config("work")))
    link.symlink_to(real)
    add_context(link, source, "muster-x")
    assert link.is_symlink()
    assert len(yaml.safe_load(real.read_text())["contexts"]) == 2


@pytest.mark.parametrize("text", ["a: [", "just text", "kind: Pod"])
def test_other_files_are_not_taken_as_kubeconfig(tmp_path: Path, source: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CliError) as caught:
        add_context(path, source, "muster-x")
    assert caught.value.exit_code == ExitCode.NO_CLUSTER
    assert path.read_text() == text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config", "source"]


def test_kubectls_lock_is_honoured(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.cli.local.kubeconfig._LOCK_WAIT_S", 0.1)
    path = tmp_path / "config"
    (tmp_path / "config.lock").touch()
    with pytest.raises(CliError, match="is locked"):
        add_context(path, source, "muster-x")
    assert not path.exists()


def test_of_files_that_do_not_exist_the_last_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(("", "/a/b", "/c")))
    assert user_kubeconfig() == Path("/c")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/home/x")
    assert user_kubeconfig() == Path("/home/x/.kube/config")
