"""Messages for bad input without a cluster: each has its exit code and says what to change."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from muster.cli.main import COMMANDS
from tests.support.musterprogram import MUSTER, Muster, muster_in

MANIFEST = """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: train}
spec:
  replicas: 2
  image: python
  command: [python3, train.py]
"""


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        (muster.home / "train.py").write_text("print('hello')\n")
        yield muster


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), ("name a script", "hint:")),
        (("run", "train.py", "-f", "job.yaml"), ("name a script, or a manifest",)),
        (("run", "missing.py", "--dry-run"), ("no script missing.py", "train.py")),
        (("run", ".", "--dry-run"), ("is a folder",)),
        (("run", "train.py", "--dry-run"), ("--image is missing",)),
        (("run", "train.py", "--image", "i", "--name", "Bad_Name", "--dry-run"), ("metadata.name", "lower-case")),
        (("run", "train.py", "--nodes", "0"), ("--nodes", "0 is not in the range")),
        (("run", "train.py", "--nodes", "99999999"), ("--nodes", "is not in the range")),
        (("run", "train.py", "--nodes", "many"), ("--nodes", "'many' is not a whole number")),
        (("run", "train.py", "--env"), ("--env", "see: muster run --help")),
        (("fault", "rank", "train", "0", "--rank"), ("--rank", "see: muster fault rank --help")),
        (("run", "train.py", "--launcher", "slurm"), ("--launcher", "'torchrun'")),
        (("run", "train.py", "--follow", "--wait"), ("exclude each other",)),
        (("run", "-f", "nowhere.yaml", "--dry-run"), ("cannot read nowhere.yaml",)),
        (("run", "train.py", "--nod", "2"), ("no such option", "--nodes")),
        (("lst",), ("no such command: 'lst'", "did you mean 'list'")),
        (("up", "--name", "Not OK"), ("is not a name for a cluster",)),
        (("down", "--name", "a/b"), ("'a/b' is not a name for a cluster",)),
        (("logs", "x", "--rank", "1", "--slot", "1"), ("exclude each other",)),
        (("completion", "powershell"), ("'bash'",)),
        (("list", "--embedded", "--context", "x"), ("--embedded chooses the cluster by itself",)),
    ],
)
def test_bad_usage_exits_with_2(muster: Muster, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(muster.run(*arguments), 2, *words)
    assert not muster.state.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MANIFEST.replace("  replicas: 2", "  replicas: 2\n   image: x"), ("job.yaml:6:", "not YAML")),
        (MANIFEST.replace("replicas", "replica"), ("job.yaml:5:3", "did you mean replicas?")),
        (MANIFEST.replace("replicas", "nodes"), ("job.yaml:5:3", "spec.nodes: unknown field; did you mean replicas?")),
        (MANIFEST + "  gpus: 8\n", ("job.yaml:8:3", "spec.gpus: unknown field; did you mean gpusPerNode?")),
        (MANIFEST + "  workers: 8\n", ("job.yaml:8:3", "spec.workers: unknown field; did you mean replicas?")),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n", ("error: job.yaml:2:7: kind: 'ConfigMap'; a TrainingJob",)),
        (MANIFEST.replace("replicas: 2", "replicas: 0"), ("job.yaml:5:", "spec.replicas")),
        (MANIFEST.replace("replicas: 2", "replicas: 1000000000"), ("job.yaml:5:", "spec.replicas")),
        (MANIFEST.replace("replicas: 2", "replicas: two"), ("job.yaml:5:", "spec.replicas")),
        (MANIFEST.replace("name: train", "name: Train_1"), ("job.yaml:3:", "metadata.name")),
        (MANIFEST.replace("TrainingJob", "Job"), ("job.yaml:2:", "kind")),
        (MANIFEST.replace("  image: python\n", ""), ("spec.image",)),
        (MANIFEST + "---\n" + MANIFEST, ("2 documents",)),
        ("", ("nothing in it",)),
        ("\x00\x01", ("not YAML",)),
    ],
)
def test_bad_manifests_are_refused_with_their_line(muster: Muster, text: str, words: tuple[str, ...]) -> None:
    (muster.home / "job.yaml").write_text(text)
    refused(muster.run("run", "-f", "job.yaml", "--dry-run"), 2, *words)
    from_stdin = muster.run("run", "-f", "-", "--dry-run", stdin=text)
    refused(from_stdin, 2, *(word.replace("job.yaml", "<stdin>") for word in words))


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("run", "train.py"), ("status", "x"), ("logs", "x"), ("stop", "x"), ("delete", "x"), ("exec", "x"),
     ("explain", "x"), ("fault", "node", "node-0")],
)  # fmt: skip
def test_without_a_cluster_every_command_says_how_to_get_one(muster: Muster, arguments: tuple[str, ...]) -> None:
    refused(muster.run(*arguments), 3, "no cluster", "muster up")


def test_embedded_without_a_cluster(muster: Muster) -> None:
    refused(muster.run("list", "--embedded"), 3, "no cluster runs on this machine", "muster up")


def test_kubeconfigs_that_cannot_be_used(muster: Muster) -> None:
    refused(muster.run("list", "--kubeconfig", "nowhere"), 3, "there is no kubeconfig nowhere")
    refused(muster.run("list", env={"KUBECONFIG": "/nowhere"}), 3, "/nowhere")
    broken = muster.home / "broken"
    broken.write_text("clusters: [")
    refused(muster.run("list", "--kubeconfig", broken), 3, "is not YAML")
    empty = muster.home / "empty"
    empty.write_text("apiVersion: v1\nkind: Config\n")
    refused(muster.run("list", "--kubeconfig", empty, "--context", "x"), 3, "context 'x' is not in")


def test_a_server_that_is_away(muster: Muster) -> None:
    path = muster.home / "away"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: a, user: {token: very-secret}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
    )
    done = muster.run("list", "--kubeconfig", path)
    refused(done, 3, "cannot be reached")
    assert "very-secret" not in done.stderr


def test_a_dry_run_prints_the_manifest_and_needs_no_cluster(muster: Muster) -> None:
    shown = muster.ok("run", "train.py", "--image", "python:3.12", "--nodes", "2", "--dry-run", "--", "--lr", "0.1")
    (muster.home / "again.yaml").write_text(shown)
    assert "replicas: 2" in shown
    again = muster.ok("run", "-f", "again.yaml", "--dry-run")
    assert yaml.safe_load(again) == yaml.safe_load(shown)
    assert not muster.state.exists()


def test_help_of_every_command(muster: Muster) -> None:
    overview = muster.ok("--help")
    for name in COMMANDS:
        assert f"\n  {name} " in overview
        assert "Usage:" in muster.ok(name, "--help"), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(muster: Muster, shell: str) -> None:
    assert "_MUSTER_COMPLETE" in muster.ok("completion", shell)


def test_completion_completes(muster: Muster) -> None:
    assert muster.offered("muster ex") == {"exec", "explain"}


JOB_COMMANDS = ("status", "logs", "exec", "stop", "resume", "delete", "explain")


@pytest.mark.parametrize("name", JOB_COMMANDS)
def test_without_a_cluster_no_job_is_offered_and_nothing_is_said(muster: Muster, name: str) -> None:
    assert muster.offered(f"muster {name} t") == set()


def test_completion_does_not_wait_for_a_server_that_is_silent(muster: Muster) -> None:
    path = muster.home / "silent"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
            f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{silent.getsockname()[1]}'}}}}]\n"
            "users: [{name: a, user: {token: t}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
        )
        assert muster.offered("muster status t", KUBECONFIG=str(path)) == set()


def test_as_a_kubectl_plugin(muster: Muster) -> None:
    done = muster.run("--help", program=MUSTER.with_name("kubectl-muster"))
    assert done.stdout.startswith("Usage: kubectl muster ")


def test_no_colour_in_a_pipe(muster: Muster) -> None:
    done = muster.run("lst", env={"TERM": "xterm-256color"})
    assert "\x1b" not in done.stderr


def test_down_without_a_cluster_succeeds(muster: Muster) -> None:
    done = muster.run("down")
    assert done.returncode == 0
    assert "nothing to remove" in done.stderr


def test_a_folder_of_something_else_is_never_taken_over_nor_removed(muster: Muster, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    env = {"MUSTER_STATE_DIR": str(precious)}
    refused(muster.run("up", env=env), 5, "has other content")
    refused(muster.run("down", env=env), 5, "is not a cluster's folder")
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]
