"""Issue 11.18: a kubeconfig or home that cannot be used is named (exit 3), and never means another cluster."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from muster.cli.errors import ExitCode
from muster.cli.local.kubeconfig import remove_from_all, user_kubeconfig
from muster.cli.main import run
from muster.cli.target import Target, resolve
from muster.embedded.layout import ClusterSpec, Layout, ProcessId

AWAY = (
    "apiVersion: v1\nkind: Config\ncurrent-context: %s\n"
    "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    "users: [{name: u, user: {}}]\ncontexts: [{name: %s, context: {cluster: c, user: u}}]\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home on whose machine an embedded cluster runs: this process stands for its daemon."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "MUSTER_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    layout = Layout(tmp_path / ".local/state/muster/embedded")
    layout.write_spec(ClusterSpec(name="embedded", nodes=1, gpus=0, port=8))
    layout.daemon_file.write_bytes(msgspec.json.encode(ProcessId.of(os.getpid())))
    layout.kubeconfig.parent.mkdir()
    layout.kubeconfig.write_text(AWAY % ("ours", "ours"))
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], words: str, *arguments: str) -> None:
    assert run([*arguments] or ["list"]) == ExitCode.NO_CLUSTER
    said = capsys.readouterr().err
    assert words in said
    assert "unexpected" not in said


def test_without_a_kubeconfig_it_is_the_embedded_cluster() -> None:
    assert resolve(Target()).config.context == "ours"


def test_kubeconfig_variables_that_cannot_be_used(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "folder").mkdir()
    (home / "empty").write_text("")
    (home / "no-context").write_text("apiVersion: v1\nkind: Config\n")
    (home / "binary").write_bytes(b"\xff\xfe\x00")
    (home / "list").write_text("- a\n")
    for value, words in (
        ("folder", "Is a directory"),
        ("empty", "has no current-context"),
        ("no-context", "has no current-context"),
        ("binary", "is not YAML"),
        ("list", "is not a mapping"),
        ("nowhere", "names no file that exists"),
        ("x" * 300, "File name too long"),
        (f"nowhere{os.pathsep}folder", "Is a directory"),
        (os.pathsep, "names no file that exists"),
    ):
        parts = [str(home / part) if part else part for part in value.split(os.pathsep)]
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(parts))
        refused(capsys, words)


def test_the_default_kubeconfig_that_cannot_be_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".kube" / "config").mkdir(parents=True)
    refused(capsys, "Is a directory")


def test_an_option_that_names_a_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "Is a directory", "list", "--kubeconfig", str(home))
    refused(capsys, "there is no kubeconfig", "list", "--kubeconfig", str(home / "nowhere"))


def test_missing_files_of_a_list_are_skipped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "theirs").write_text(AWAY % ("theirs", "theirs"))
    monkeypatch.setenv("KUBECONFIG", f"{home / 'nowhere'}{os.pathsep}{home / 'theirs'}{os.pathsep}")
    assert resolve(Target()).config.context == "theirs"
    assert user_kubeconfig() == home / "theirs"


def test_a_context_is_taken_out_of_every_file_of_the_list(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [home / "one", home / "two"]
    for path in files:
        path.write_text(AWAY % ("muster-embedded", "muster-embedded"))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    remove_from_all("muster-embedded")
    assert ["muster-embedded" in path.read_text() for path in files] == [False, False]


def test_a_home_that_cannot_be_written(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    refused(capsys, "the kubeconfig /proc/nowhere/.kube/config cannot be written", "up")
    refused(capsys, "no cluster", "list")
    monkeypatch.setenv("KUBECONFIG", str(home / "config"))
    refused(capsys, "the cluster's folder cannot be used: /proc/nowhere", "up")
    monkeypatch.setenv("KUBECONFIG", str(home))
    refused(capsys, "is a folder", "up")
    file = home / "file"
    file.write_text("")
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.delenv("KUBECONFIG")
    refused(capsys, f"the kubeconfig {file}/.kube/config cannot be written", "up")
    assert not (home / "config").exists()


def test_a_user_without_a_home(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    refused(capsys, "set HOME")
    refused(capsys, "set HOME", "up")
