"""Issue 11.19: hostile values of options end in a sentence and exit code 2, before any request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from muster.cli.errors import ExitCode
from muster.cli.main import cli, run

HOSTILE = ("", " ", "-1", "0", "9" * 40, "1e999", "nan", "-inf", "ä²", "a b", "../x", "\n", "\x1b]0;x\x07", "x" * 5000)
NOT_RUN = ("admission", "controller", "up", "down", "demo", "completion", "chart")
"""Commands that would start, stop or write something for a value that is good."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a cluster, in a folder with a script."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "MUSTER_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rdma", "foo"], "'foo' is not an extended resource"),
        (["--rdma", "rdma/hca="], "--rdma rdma/hca= is not understood"),
        (["--rdma", "rdma/hca=0"], "rdma.count"),
        (["--rdma", "rdma/hca=²"], "is not understood"),
        (["--rdma", ""], "--rdma is empty"),
        (["--env", "A-B=x"], "'A-B' cannot name a variable"),
        (["--env", "=x"], "env[0].name"),
        (["--env", "1A=x"], "cannot name a variable"),
        (["--env", "A=x", "--env", "A=y"], "A is set 2 times"),
        (["--env", ""], "--env is empty"),
        (["--shm", "0"], "must be more than 0"),
        (["--shm", "0.0Gi"], "must be more than 0"),
        (["--shm", "-1Gi"], "is not a quantity"),
        (["--shm", ""], "--shm is empty"),
        (["--checkpoint", ""], "--checkpoint is empty"),
        (["--checkpoint", "a\nb"], "control characters"),
        (["--code", ""], "--code is empty"),
        (["--code", "x" * 5000], "File name too long"),
        (["--code-store", "x" * 5000], "is not a folder here"),
        (["--code-store", "relative"], "is not a folder here"),
        (["--code-store", "s3://"], "names no bucket"),
        (["--code-store", ""], "--code-store is empty"),
        (["--name", ""], "--name is empty"),
        (["--image", "a b"], "has a space in it"),
        (["--image", ""], "--image is empty"),
        (["--time-limit", ""], "--time-limit is empty"),
        (["--time-limit", "0"], "is not a length of time"),
        (["--time-limit", "99999999999d"], "timeLimitSeconds"),
        (["--time-limit", "٣h"], "is not a length of time"),
        (["--priority", "99999999999"], "priority"),
        (["--nodes", "-1"], "--nodes"),
    ],
)
def test_flags_of_run_that_cannot_be_used(capsys: pytest.CaptureFixture[str], flags: list[str], words: str) -> None:
    assert run(["run", "train.py", "--dry-run", "--image", "i", *flags]) == ExitCode.BAD_INPUT
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("name", sorted(set(cli.list_commands(click.Context(cli))) - set(NOT_RUN)))
def test_no_value_ends_in_a_traceback(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    group = cli.get_command(click.Context(cli), name)
    assert group is not None
    for path, command in below(group, (name,)):
        for parameter in command.params:
            if getattr(parameter, "is_flag", False):
                continue
            for value in HOSTILE:
                given = [*path, *needed(command, parameter), *place(parameter, value)]
                given[1:1] = ["--dry-run"] if name == "run" else []
                code = run(given)
                said = capsys.readouterr().err
                assert "unexpected" not in said, f"{given}: {said}"
                assert "Traceback" not in said, f"{given}: {said}"
                assert code in (ExitCode.DONE, ExitCode.BAD_INPUT, ExitCode.NO_CLUSTER, ExitCode.NOT_FOUND), (
                    f"{given}: {code} {said}"
                )


@pytest.mark.parametrize(
    "option", ["--days", "--mtbf-hours", "--repair-hours", "--checkpoint-minutes", "--time-limits"]
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_without_end_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--like", "kalos", "--nodes", "10", option, value]) == ExitCode.BAD_INPUT
    assert "not a finite number" in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["", "  ", "\n", "...", "a\x1bb", "x" * 513, "\u200b"])
@pytest.mark.parametrize("action", ["quarantine", "release"])
def test_a_reason_that_says_nothing_is_refused_before_any_request(
    action: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 11.16."""
    assert run(["nodes", action, "node-1", "--reason", reason]) == ExitCode.BAD_INPUT
    assert "--reason has to say what for" in capsys.readouterr().err


def below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from below(each, (*path, name))


def place(parameter: click.Parameter, value: str) -> list[str]:
    return [parameter.opts[0], value] if isinstance(parameter, click.Option) else ["--", value]


def needed(command: click.Command, but: click.Parameter) -> list[str]:
    """What the command has to be given beside the parameter that is tried; arguments come last."""
    options = [p for p in command.params if isinstance(p, click.Option) and p.required and p is not but]
    given = [word for option in options for word in (option.opts[0], "good")]
    if isinstance(but, click.Option):
        arguments = [p for p in command.params if isinstance(p, click.Argument) and p.required]
        given += ["0" if argument.type.name.startswith("integer") else "good" for argument in arguments]
    return given
