"""`muster telemetry unused`: metrics that are scraped but not read, and the change that drops them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.cli.control_bytes import unguarded
from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, ExitCode
from muster.cli.input_file import read_text
from muster.cli.names import not_empty
from muster.cli.output import duration, note, output_option, print_data, print_table, say, say_command
from muster.cli.telemetry.running import run
from muster.cli.telemetry.server_options import ServerOptions, server_options

if TYPE_CHECKING:
    from muster.telemetry.usage.examine import Examined, Inputs
    from muster.telemetry.usage.proposal.configs import Change
    from muster.telemetry.usage.proposal.droprules import Proposal
    from muster.telemetry.usage.report import Report

_EXISTING: Final = click.Path(path_type=Path, exists=True)
_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_ROWS_MAX: Final = 40
_LISTED_MAX: Final = 10
_PROGRESS_S: Final = 2.0
_TIMEOUT_S: Final = 60.0
_ANSWER_BYTES: Final = 256 << 20
"""An answer with 40,000 targets has about 100 MB."""
_WINDOW_MOST_S: Final = 10 * 365 * 86400.0


def _window(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Read a length of time, such as 30d or 12h, in seconds."""
    from muster.telemetry.prometheus.durations import seconds_of

    try:
        length = seconds_of(text)
    except ValueError as error:
        raise BadInput(f"--window: {error}") from error
    if not 0 < length <= _WINDOW_MOST_S:
        raise BadInput(f"--window {text} is not between 1s and 10y", "write, for example, --window 30d")
    return length


def _paths(name: str, path: click.Path, text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(f"--{name}", name.replace("-", "_"), multiple=True, type=path, help=f"{text} Repeatable.")


@click.command("unused")
@server_options()
@_paths("dashboards", _EXISTING, "Dashboards of Grafana (JSON or YAML), or a folder with them.")
@_paths("rules", _EXISTING, "Rules that the server does not list: files, objects of operators, alerts of Grafana.")
@_paths("query-log", _FILE, "Query log of Prometheus or Mimir, also rotated and compressed.")
@click.option(
    "--window", "window_s", default="30d", show_default=True, callback=_window, metavar="DURATION",
    help="How long the query logs must cover, up to now.",
)  # fmt: skip
@_paths("guard-queries", _FILE, "Dearest queries of the guard, saved from /guard/dearest.")
@_paths("federated-by", _FILE, "Configuration of a server that scrapes /federate of this one.")
@click.option(
    "--keep", "selectors", multiple=True, metavar="SELECTOR", callback=not_empty,
    help="Series that another program reads, as in '{job=\"node\"}'. Repeatable.",
)  # fmt: skip
@click.option(
    "--ignore", "ignored", multiple=True, metavar="QUERY", callback=not_empty,
    help="Query that does not count as use, as the report prints it. Repeatable.",
)  # fmt: skip
@click.option(
    "--other-datasource", "other_sources", multiple=True, metavar="NAME", callback=not_empty,
    help="Name or UID of a data source of Grafana that is not this server. Repeatable.",
)  # fmt: skip
@click.option("--remote-write-covered", is_flag=True, help="Readers of remote_write are among the inputs.")
@click.option("--rules-deleted", is_flag=True, help="As if the unused recording rules were deleted.")
@_paths("config", _FILE, "File to change: prometheus.yml, ServiceMonitor, PodMonitor, ...")
@output_option("table", "json", "yaml", "diff")
def command(
    server: ServerOptions,
    dashboards: tuple[Path, ...],
    rules: tuple[Path, ...],
    query_log: tuple[Path, ...],
    guard_queries: tuple[Path, ...],
    window_s: float,
    federated_by: tuple[Path, ...],
    selectors: tuple[str, ...],
    ignored: tuple[str, ...],
    other_sources: tuple[str, ...],
    remote_write_covered: bool,
    rules_deleted: bool,
    config: tuple[Path, ...],
    output: str,
) -> int:
    """Find metrics that are scraped and not read by any dashboard, rule or logged query.

    With -o diff and --config, print the change of the configuration that drops them, and the command that applies it.
    Review it first.

    Exit status: 0; 1 if the diff lacks rules that must be added by hand; 3 without a server; 2 for bad input. Query
    logs that cover less than the window are bad input.
    """
    from muster.telemetry.usage.examine import Inputs
    from muster.telemetry.usage.proposal.droprules import propose
    from muster.telemetry.usage.report import report_of

    if not dashboards and not query_log:
        raise BadInput("without dashboards or a query log, everything is unused", "add --dashboards or --query-log")
    if output == "diff" and not config:
        raise BadInput("a diff needs the files to change", "add --config prometheus.yml")
    texts = {str(path): read_text(str(path)) for path in config}
    inputs = Inputs(
        files=(*dashboards, *rules),
        query_logs=query_log,
        guard_queries=guard_queries,
        window_s=window_s,
        other_sources=frozenset(other_sources),
        ignored=frozenset(ignored),
        selectors=selectors,
        federated_by=federated_by,
        configs=texts,
        remote_write_covered=remote_write_covered,
        rules_deleted=rules_deleted,
    )
    examined = _examined(server, inputs, output)
    proposal = propose(examined.findings.unused, examined.inventory)
    changes = _changes(config, texts, proposal, duration(window_s) if query_log else "")
    report = report_of(server.url, examined, proposal)
    if output in ("json", "yaml"):
        from msgspec import to_builtins

        print_data({**to_builtins(report), "diff": _diff(changes)[0]}, output)
        return ExitCode.DONE
    if output == "diff":
        return _print_diff(changes, proposal)
    _print_report(report, bool(config))
    return ExitCode.DONE


def _examined(server: ServerOptions, inputs: Inputs, output: str) -> Examined:
    from muster.cli.local.up import waiting
    from muster.kube.loglines import LogFileError
    from muster.telemetry.usage.examine import ShortLog, examine
    from muster.telemetry.usage.inputs.files import InputError

    async def work(progress: Callable[[str], None]) -> Examined:
        async with server.client(_TIMEOUT_S, _ANSWER_BYTES) as client:
            return await examine(client, inputs, time.time(), progress)

    try:
        with waiting("reading what is used") as show:
            return run(work(_throttled(show)))
    except ShortLog as error:
        covered, asked = duration(error.covered_s), duration(inputs.window_s)
        raise BadInput(
            f"the query logs cover {covered} of the {asked} before now",
            f"add older log files with --query-log, or write --window {max(int(error.covered_s), 1)}s",
        ) from error
    except (InputError, LogFileError) as error:
        raise BadInput(str(error)) from error


def _throttled(show: Callable[[str], None]) -> Callable[[str], None]:
    """Show a stage only if two seconds have passed since the last one, or since the start."""
    last = time.monotonic()

    def progress(stage: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_S:
            last = time.monotonic()
            show(stage)

    return progress


def _changes(paths: tuple[Path, ...], texts: dict[str, str], proposal: Proposal, window: str) -> list[Change]:
    from muster.telemetry.usage.proposal.configs import ConfigError, changed

    rules: dict[str, list[tuple[object, str]]] = {}
    for rule in proposal.rules:
        since = f" in {window}" if window else ""
        shown = f"Not read{since}: {len(rule.names)} metrics, {rule.series} series, {_size(rule.bytes_per_day)} a day."
        rules.setdefault(rule.pool, []).append((rule, shown))
    try:
        return [changed(path, texts[str(path)], rules) for path in paths]  # type: ignore[arg-type]
    except ConfigError as error:
        raise BadInput(str(error), "name prometheus.yml, or files with ServiceMonitors or PodMonitors") from error


def _diff(changes: list[Change]) -> tuple[str, str]:
    """Return the diff of all files, and the command that applies it here."""
    from muster.telemetry.usage.proposal.configs import patch_names

    names, apply = patch_names([each.path for each in changes], Path.cwd())
    return "".join(each.diff(name) for each, name in zip(changes, names, strict=True)), apply


def _print_diff(changes: list[Change], proposal: Proposal) -> int:
    text, apply = _diff(changes)
    if sys.stdout.isatty():
        click.echo(text, nl=False)
    else:  # as it is: escaped control characters would not match the file, such as ends of lines of Windows
        unguarded(sys.stdout).write(text)
    if text:
        note(f"apply it in this folder, saved as drop.patch: {apply} < drop.patch")
    by_hand = {pool: f"{change.path}: {why}" for change in changes for pool, why in change.by_hand.items()}
    added = {pool for change in changes for pool in change.pools}
    missing = {rule.pool for rule in proposal.rules} - added
    for pool in sorted(missing):
        why = by_hand.get(pool, "no file of --config has it")
        note(f"rules for the scrape pool {pool} are not in the diff: {why}; -o json prints them")
    if not proposal.rules:
        note("nothing to drop")
    return ExitCode.FAILED if missing else ExitCode.DONE


def _print_report(report: Report, has_config: bool) -> None:
    series = sum(each.series for each in report.unused)
    saved = sum(each.bytes_per_day for each in report.unused)
    metrics = len({each.metric for each in report.unused})
    estimate = "" if report.bytes_per_sample_measured else " (estimate)"
    say(
        f"{metrics} of {report.metrics} metrics are not read: {series} of {report.series} series, {_size(saved)} a day "
        f"on disk{estimate}."
    )
    if report.unused:
        print_table(
            ("METRIC", "JOB", "SERIES", "BYTES/DAY"),
            [
                (each.metric, each.job or "-", str(each.series), _size(each.bytes_per_day))
                for each in report.unused[:_ROWS_MAX]
            ],
        )
        _more(len(report.unused), _ROWS_MAX, "metrics")
    if report.unused_rules:
        only = sum(each.series for each in report.only_unused_rules)
        say(f"\nRecording rules whose metric is not read; without them {only} more series are not read:")
        for rule in report.unused_rules[:_LISTED_MAX]:
            say(f"{rule.record} (group {rule.group})", head="  - ")
        _more(len(report.unused_rules), _LISTED_MAX, "rules")
    broad = [each for each in report.broad_queries if each.series or each.shared_series or each.doubt]
    if broad:
        say("\nQueries that do not name what they read, and the series that are kept only for each of them:")
        for each in broad[:_LISTED_MAX]:
            doubt = f" ({each.doubt})" if each.doubt else ""
            shared = f", {each.shared_series} together with others of this list" if each.shared_series else ""
            same = f"; {each.others} other queries read the same" if each.others else ""
            say(f"{each.series} series{shared}: {each.query} in {each.source}{doubt}{same}", head="  - ")
        _more(len(broad), _LISTED_MAX, "queries")
        say(
            "If one of them only counts metrics, leave it out with --ignore QUERY. If its data source is not this "
            "server, name that with --other-datasource."
        )
    if report.not_scraped:
        say(
            f"\n{len(report.not_scraped)} metrics that are not read come from no target: drop them where they are sent."
        )
    for text in report.notes[:_LISTED_MAX]:
        say(text, head="note: ")
    _more(len(report.notes) + report.notes_left_out, _LISTED_MAX, "notes")
    if report.drop_rules:
        say("\nPrint the change that drops them:")
        say_command(f"muster telemetry unused ... {'' if has_config else '--config prometheus.yml '}-o diff")


def _more(count: int, shown: int, what: str) -> None:
    if count > shown:
        say(f"  {count - shown} more {what}: -o json lists all")


def _size(size: float) -> str:
    return amount(size, "bytes")
