"""Issue 11.15: a name reaches only the object that it names; what cannot be a name is refused before any request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

from muster.cli.errors import ExitCode
from muster.cli.main import cli, run
from muster.cli.names import valid_namespace, valid_object_name

HOSTILE = ("../placements/cli", "a/b", "..", ".", "a?b=c", "a#b", "a%2fb", "Train", "a b", "a\n", "-", "ä", "x" * 254)


class Recorder(ThreadingHTTPServer):
    """An API server that knows nothing and writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                recorder.asked.append(f"{self.command} {self.path}")
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with Recorder() as recorder:
        thread = threading.Thread(target=recorder.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", recorder.server_port)))
        yield recorder
        recorder.shutdown()
        thread.join()


def kubeconfig(path: Path, port: int, namespace: str = "default") -> Path:
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
        "users: [{name: a, user: {}}]\n"
        f"contexts: [{{name: a, context: {{cluster: a, user: a, namespace: {namespace}}}}}]\n"
    )
    return path


JOB_COMMANDS = ("status", "logs", "exec", "explain", "stop", "resume", "delete")
NAMED = [
    *([name] for name in JOB_COMMANDS),
    ["delete", "good"],
    ["explain", "good", "--if-ended"],
    ["explain", "good", "--without-node"],
    ["nodes", "history"],
    ["nodes", "why"],
    ["nodes", "quarantine", "--reason", "x"],
    ["nodes", "release", "--reason", "x"],
    ["health", "explain"],
    ["fault", "node"],
    ["fault", "return"],
    ["fault", "rank"],
    ["list", "--namespace"],
    ["status", "good", "-n"],
    ["nodes", "--system-namespace"],
    ["controller", "--namespace"],
    ["admission", "--namespace"],
]


@pytest.mark.parametrize("arguments", NAMED, ids=" ".join)
def test_invalid_name_is_refused_before_any_request(
    server: Recorder, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    for name in HOSTILE:
        given = [*arguments, "--", name] if not arguments[-1].startswith("-") else [*arguments, name]
        if arguments == ["fault", "rank"]:
            given.append("0")
        assert run(given) == ExitCode.BAD_INPUT, name
        said = capsys.readouterr().err
        assert "cannot be the name of a" in said
    assert server.asked == []


def test_a_good_name_is_asked_for(server: Recorder) -> None:
    assert run(["status", "train.1-x"]) != ExitCode.DONE
    assert server.asked[0].endswith("/namespaces/default/trainingjobs/train.1-x")


@pytest.mark.parametrize(
    "arguments",
    [["list", "-n", ""], ["list", "--context", ""], ["list", "--kubeconfig", ""], ["down", "--name", ""],
     ["status", ""], ["delete", "a", ""], ["explain", "a", "--if-ended", ""], ["nodes", "why", ""]],
)  # fmt: skip
def test_an_empty_value_never_means_the_default(
    server: Recorder, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(arguments) == ExitCode.BAD_INPUT
    assert "is empty" in capsys.readouterr().err
    assert server.asked == []


def test_a_namespace_of_a_kubeconfig_that_cannot_be_one(
    server: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kubeconfig(tmp_path / "bad", server.server_port, "../nodes")
    assert run(["delete", "train", "--kubeconfig", str(path)]) == ExitCode.NO_CLUSTER
    assert "'../nodes' as its namespace" in capsys.readouterr().err
    assert server.asked == []


def test_a_namespace_and_a_name_of_a_manifest_that_cannot_be_one(
    server: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "job.yaml"
    text = "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: %s, namespace: %s}\n"
    for name, namespace, field in (("a", "../x", "metadata.namespace"), ("../a", "x", "metadata.name")):
        manifest.write_text(text % (name, namespace) + "spec: {replicas: 1, image: i, command: [x]}\n")
        assert run(["run", "-f", str(manifest)]) == ExitCode.BAD_INPUT
        assert field in capsys.readouterr().err
    assert server.asked == []


def test_every_argument_that_is_a_name_is_checked() -> None:
    """A command that is added later cannot forget the check."""
    not_names = {"script", "args", "arguments", "slot", "trace", "file", "files", "folder", "log", "shell"}
    for path, parameter in parameters(cli, "muster"):
        if isinstance(parameter, click.Argument) and parameter.name not in not_names:
            assert parameter.callback is not None, f"{path}: {parameter.name}"
        if {"--namespace", "--context", "--kubeconfig", "--system-namespace"} & set(parameter.opts):
            assert parameter.callback is not None or parameter.type.name == "file", f"{path}: {parameter.opts}"


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    yield from ((path, parameter) for parameter in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from parameters(below, f"{path} {name}")


@pytest.mark.parametrize("name", ["train", "a", "0", "a.b-c", "x" * 63])
def test_names_that_kubernetes_accepts(name: str) -> None:
    assert valid_object_name(name)
    assert valid_namespace(name) or "." in name
