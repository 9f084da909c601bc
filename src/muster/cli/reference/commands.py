"""Writes docs/reference/cli.md from the commands: `python -m muster.cli.reference.commands [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from muster.api.generated import write_or_check
from muster.cli.errors import ExitCode
from muster.cli.main import COMMANDS, HIDDEN, cli

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/reference/cli.md"
_HOW: Final = "python -m muster.cli.reference.commands"

_HEAD: Final = f"""# Commands

<!-- Written by {_HOW}; change src/muster/cli instead. -->

`muster` and, as kubectl's plugin, `kubectl muster`. Data goes to stdout and everything else to stderr; `-o json` and
`-o yaml` are for scripts. Colour is used only on a terminal, and not if `NO_COLOR` is set.

"""

_CLUSTER: Final = """## Which cluster

Muster finds the cluster as kubectl does. Without a kubeconfig it uses the cluster that `muster up` started on this
machine. Every command that talks to a cluster has these options. But `muster run` has only the long option
`--namespace`, because `-n` set the number of nodes in earlier versions.

"""
_CLUSTER_OPTIONS: Final = ("namespace", "kubeconfig", "context", "embedded")

_EXIT_WORDS: Final = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the job or operation failed",
    ExitCode.BAD_INPUT: "bad input or usage; nothing was changed",
    ExitCode.NO_CLUSTER: "no cluster, or no credentials that the cluster accepts",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.CONFLICT: "conflict: the object exists already, or is in another state",
    ExitCode.TIMED_OUT: "timed out",
    ExitCode.INTERRUPTED: "interrupted",
}


def page() -> str:
    """The page as Markdown."""
    root = click.Context(cli, info_name="muster")
    shared = cli.get_command(root, "list")
    assert shared is not None
    lines = [_HEAD, _CLUSTER, *_options([each for each in shared.params if each.name in _CLUSTER_OPTIONS], root)]
    lines.append("\n## Exit status\n\n| | |\n|---|---|\n")
    lines += [f"| {int(code)} | {_EXIT_WORDS[code]} |\n" for code in ExitCode]
    lines.append("\n`muster exec` exits as its command did.\n")
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values() if entry.section != HIDDEN):
        lines.append(f"\n## {section}\n")
        for name, entry in COMMANDS.items():
            if entry.section == section:
                command = cli.get_command(root, name)
                assert command is not None
                lines += _command(command, click.Context(command, info_name=name, parent=root), "###")
    return "".join(lines)


def _command(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n{heading} {context.command_path}\n\n```\n{context.command_path} {usage}\n```\n\n"
    yield f"{_text(command.help or '')}\n"
    shared = {"kubeconfig", "context"} <= {parameter.name for parameter in command.params}
    own = [each for each in command.params if not (shared and each.name in _CLUSTER_OPTIONS)]
    if table := list(_options(own, context)):
        yield "\n"
        yield from table
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, click.Context(inner, info_name=name, parent=context), heading + "#")


def _options(parameters: Sequence[click.Parameter], context: click.Context) -> Iterator[str]:
    options = [each for each in parameters if isinstance(each, click.Option)]
    records = [record for each in options if (record := each.get_help_record(context)) is not None]
    if records:
        yield "| option | |\n|---|---|\n"
    for names, words in records:
        yield f"| `{_cell(names.replace(' RANGE', ''))}` | {_cell(words)} |\n"


def _text(text: str) -> str:
    """Format a docstring as click does: wrapped paragraphs, and unwrapped lines after a backspace character."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        "```\n" + inspect.cleandoc(paragraph.removeprefix("\b\n")) + "\n```"
        if paragraph.startswith("\b")
        else " ".join(paragraph.split())
        for paragraph in paragraphs
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the commands say")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
