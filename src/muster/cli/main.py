"""The program `muster`. It imports a command only when the command is called, so that it starts fast."""

from __future__ import annotations

import difflib
import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from muster.api.visible import visible
from muster.cli.control_bytes import guarded
from muster.cli.errors import CliError, ExitCode
from muster.kube.garbage import loading


class Entry(NamedTuple):
    """The module of a command, and its line in `--help`."""

    module: str
    help: str
    section: str


_HELP_NARROW, _HELP_MIN = 52, 20
"""Least width of help texts. Without it, click uses at least 50 columns."""
JOBS, TEAMS, CLUSTERS, OTHER = "Training jobs", "Teams and nodes", "Clusters on this machine", "Other"
HIDDEN = ""

COMMANDS: dict[str, Entry] = {
    "run": Entry("muster.cli.jobs.run", "Run a script or a TrainingJob file on the cluster.", JOBS),
    "list": Entry("muster.cli.jobs.list", "List training jobs.", JOBS),
    "status": Entry("muster.cli.jobs.status", "Show a job: attempt, slots and nodes, faults, what to do next.", JOBS),
    "checkpoints": Entry(
        "muster.cli.jobs.show_checkpoints", "List a job's checkpoints, and why some are not used.", JOBS
    ),
    "logs": Entry("muster.cli.ranks.logs", "Print what a job's ranks wrote.", JOBS),
    "exec": Entry("muster.cli.ranks.exec", "Run a command, or a shell, where a rank runs.", JOBS),
    "stacks": Entry("muster.cli.ranks.stacks", "Show where each rank is, grouped by equal stack.", JOBS),
    "explain": Entry("muster.cli.jobs.explain", "Explain why a job waits, and which changes would let it start.", JOBS),
    "stop": Entry("muster.cli.jobs.stop", "Suspend a job: its nodes are free, its state is kept.", JOBS),
    "resume": Entry("muster.cli.jobs.resume", "Let a stopped job continue from its last checkpoint.", JOBS),
    "delete": Entry("muster.cli.jobs.delete", "Delete jobs and everything they own.", JOBS),
    "data": Entry("muster.cli.data.data", "List training data; show, fill and empty the caches of nodes.", JOBS),
    "teams": Entry("muster.cli.teams.teams", "Show what teams own, or what another configuration would change.", TEAMS),
    "capacity": Entry("muster.cli.teams.capacity", "Show each pool's nodes: healthy, owned, in use, idle.", TEAMS),
    "nodes": Entry("muster.cli.nodes.nodes", "Show nodes, one state each; why, history, quarantine, release.", TEAMS),
    "health": Entry("muster.cli.health.health", "Show faulty nodes, and which line of the policy decides.", TEAMS),
    "doctor": Entry("muster.cli.doctor.doctor", "Find what harms the control plane: who, its cost, the fix.", TEAMS),
    "etcd": Entry("muster.cli.etcd.etcd", "Compute settings for etcd at a planned size.", TEAMS),
    "network": Entry("muster.cli.network.network", "Show traffic per job, the uplink and its addresses.", TEAMS),
    "telemetry": Entry(
        "muster.cli.telemetry.telemetry", "Show unused metrics, what grows, and Prometheus' restart.", TEAMS
    ),
    "up": Entry("muster.cli.local.up", "Start a cluster on this machine.", CLUSTERS),
    "down": Entry("muster.cli.local.down", "Stop it and remove everything it left.", CLUSTERS),
    "demo": Entry(
        "muster.cli.local.demo", "Watch a job survive a killed rank and a lost node, in two minutes.", CLUSTERS
    ),
    "fault": Entry("muster.cli.local.fault", "Cause a fault in an embedded cluster on purpose.", CLUSTERS),
    "simulate": Entry(
        "muster.cli.replay.simulate", "Replay a trace through the scheduler: waits, use, failures.", OTHER
    ),
    "controller": Entry("muster.cli.processes.controller", "Run the controllers (the chart starts it).", OTHER),
    "admission": Entry("muster.cli.processes.admission", "Run the webhook for teams (the chart starts it).", OTHER),
    "readcache": Entry("muster.cli.processes.readcache", "Run the read cache (the chart starts it).", OTHER),
    "guard": Entry("muster.cli.processes.guard", "Run the guard in front of Prometheus (the chart starts it).", OTHER),
    "chart": Entry("muster.cli.chart", "Write the Helm chart into a folder, to install it on a cluster.", OTHER),
    "completion": Entry("muster.cli.completion", "Print shell completion for bash, zsh or fish.", OTHER),
    "version": Entry("muster.cli.version", "Print versions.", OTHER),
}


class _HelpFormatter(click.HelpFormatter):
    """Help whose first column takes at most half of a narrow terminal."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of definitions."""
        super().write_dl(rows, min(col_max, self.width // 2), col_spacing)


click.Context.formatter_class = _HelpFormatter


class _ReaderGone(Exception):
    """The reader closed the pipe of stdout, as `muster logs ... | head` does."""


class LazyGroup(click.Group):
    """A group whose commands are imported when called; each module holds one click command named `command`.

    Attributes:
        owns_process: the process was started for a command, and ends with it.
    """

    owns_process = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None if the name is unknown."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        with loading(for_good=self.owns_process):
            command = importlib.import_module(entry.module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.command is not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but a closed pipe is not an error: click would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a mistyped name."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise CliError(f"no such command: '{args[0]}'", f"{hint}see: {ctx.command_path} --help", ExitCode.BAD_INPUT)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, from the table, without importing any."""
        for section in (JOBS, TEAMS, CLUSTERS, OTHER):
            with formatter.section(section):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.section == section])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="First time here? `muster demo` shows it; `muster up`, then `muster run train.py --follow`, uses it.",
)
@click.option("--debug", is_flag=True, help="Show a traceback when something unexpected happens.")
@click.version_option(package_name="muster", message="muster %(version)s")
def cli(debug: bool) -> None:
    """Train on Kubernetes: gang jobs on whole GPU nodes that survive hardware."""


def run(arguments: Sequence[str], program: str = "muster") -> int:
    """Run the command line, print errors, and return the exit status."""
    with guarded():
        return _run(arguments, program)


def _run(arguments: Sequence[str], program: str) -> int:
    debug = "--debug" in arguments[:1] or bool(os.environ.get("MUSTER_DEBUG"))
    try:
        columns = shutil.get_terminal_size().columns
        width = max(columns - 2, _HELP_MIN) if columns < _HELP_NARROW else None
        status = cli.main(list(arguments), program, standalone_mode=False, terminal_width=width)
        return status if isinstance(status, int) else ExitCode.DONE
    except CliError as error:
        return _fail(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return ExitCode.BAD_INPUT
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else _typed(arguments, program)
        return _fail(CliError(_sentence(error.format_message()), f"see: {where} --help", ExitCode.BAD_INPUT))
    except click.ClickException as error:
        return _fail(CliError(_sentence(error.format_message()), exit_code=ExitCode.BAD_INPUT))
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except _ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except Exception as error:
        if debug:
            raise
        return _fail(_translated(error))


def _translated(error: Exception) -> CliError:
    """Convert an exception to a CliError. API errors get specific messages."""
    from muster.kube.errors import ApiError, ConfigError

    if isinstance(error, ConfigError):
        return CliError(str(error), exit_code=ExitCode.NO_CLUSTER)
    if isinstance(error, ApiError):
        from muster.cli.errors import from_api_error

        return from_api_error(error)
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return CliError(f"unexpected: {what}", "MUSTER_DEBUG=1 shows where it comes from")


def _typed(arguments: Sequence[str], program: str) -> str:
    """Returns the command as typed, with its groups. Click does not report it for an option without a value."""
    path = [program]
    group: click.Group = cli
    for name in arguments:
        below = group.get_command(click.Context(group), name)
        if below is not None:
            path.append(name)
        if isinstance(below, click.Group):
            group = below
        elif below is not None:
            break
    return " ".join(path)


def _sentence(text: str) -> str:
    """Return click's message in our form: without its full stop, and with a lower-case first letter."""
    text = text.strip().removesuffix(".").replace("is not a valid integer range", "is not a whole number")
    return text[:1].lower() + text[1:]


def _fail(error: CliError) -> int:
    """Print an error and its hint; returns its exit status."""
    from muster.cli.output import fitted, paint

    for head, color, text in (("error:", "red", error.message), ("hint:", "cyan", error.hint)):
        if text:
            label = paint(head, color, bold=head == "error:", stream=sys.stderr)
            lines = fitted(f"{head} {visible(text)}", stream=sys.stderr)
            click.echo("\n".join([label + lines[0].removeprefix(head), *lines[1:]]), err=True)
    return error.exit_code


def main() -> NoReturn:
    """The console script: `muster`, or `kubectl-muster` when kubectl calls us as its plugin."""
    cli.owns_process = True
    program = "kubectl muster" if Path(sys.argv[0]).name.startswith("kubectl-") else "muster"
    sys.exit(run(sys.argv[1:], program))


if __name__ == "__main__":
    main()
