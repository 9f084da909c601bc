"""`muster telemetry rules`: the cost of recording and alerting rules."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite
from muster.cli.output import duration, note, output_option, print_data, print_table, say
from muster.cli.telemetry.running import run, stages
from muster.cli.telemetry.server_options import ServerOptions, server_options

if TYPE_CHECKING:
    from muster.telemetry.guard.limits import Limits
    from muster.telemetry.guard.rules.pricedrules import PricedRule, TimedRule
    from muster.telemetry.usage.inputs.rules import Rule

_ANSWER_BYTES_MAX: Final = 16 << 20
_DAY_S: Final = 86400.0
_MISTAKES_SHOWN: Final = 10
_EXPR_SHOWN: Final = 200


@click.command("rules")
@server_options()
@click.option(
    "--rules", multiple=True, type=click.Path(path_type=Path, exists=True),
    help="Rules that the server does not have yet: files, folders, objects of operators (those of the server).",
)  # fmt: skip
@click.option(
    "--interval", type=click.FloatRange(0.1, _DAY_S), callback=finite, default=60.0, show_default=True,
    metavar="SECONDS", help="Time between evaluations of groups that name none.",
)  # fmt: skip
@click.option("--max-series", type=click.IntRange(1), help="Series that one evaluation may match (the guard's limit).")
@click.option("--max-samples", type=click.IntRange(1), help="Samples that it may read (the guard's limit).")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Rules without problem to show.")
@output_option("json", "yaml")
def command(
    server: ServerOptions,
    rules: tuple[Path, ...],
    interval: float,
    max_series: int | None,
    max_samples: int | None,
    limit: int,
    output: str,
) -> int:
    """Price recording and alerting rules as the guard prices queries; the dearest first.

    Rules run inside the server, where no guard sees them. So check them before you load them. The command prices each
    rule with bounded requests for the series that the server has now, and multiplies it by the evaluations of a day.

    Exit status: 0; 1 if a rule exceeds the limits, has no price or is not valid; 2 for bad input; 4
    without any rule.
    """
    from msgspec import structs, to_builtins

    from muster.telemetry.guard.limits import Limits

    changes = {"max_series": max_series, "max_samples": max_samples}
    limits = structs.replace(Limits(), **{name: value for name, value in changes.items() if value is not None})
    with stages("pricing rules", output) as stage:
        found = run(_priced(server, rules, interval, limits, stage))
    if not found:
        raise CliError("there are no rules", "name files of rules with --rules", ExitCode.NOT_FOUND)
    if output:
        print_data(to_builtins(found), output)
    else:
        _print(found, limit)
    return ExitCode.FAILED if any(each.problem for each in found) else ExitCode.DONE


async def _priced(
    server: ServerOptions, paths: tuple[Path, ...], interval_s: float, limits: Limits, stage: Callable[[str], None]
) -> list[PricedRule]:
    from muster.telemetry.guard.pricing.pricer import Pricer
    from muster.telemetry.guard.rules.pricedrules import price_rules
    from muster.telemetry.guard.rules.probes import ClientProbes
    from muster.telemetry.usage.inputs.rules import server_rules

    of_files = _of_files(paths) if paths else []
    async with server.client(max_bytes=_ANSWER_BYTES_MAX) as client:
        await client.buildinfo()  # a wrong address is an error, not a rule without a price
        rules = [_timed(each, interval_s) for each in (of_files if paths else server_rules(await client.rules()))]
        pricer = Pricer(ClientProbes(client), time.monotonic)
        return await price_rules(
            rules, pricer, limits, time.time(), lambda done: stage(f"{done} of {len(rules)} rules")
        )


def _of_files(paths: tuple[Path, ...]) -> list[Rule]:
    """Read rules. A file that cannot be parsed is an error: its rules would seem to be checked."""
    from muster.telemetry.usage.inputs.files import WHOLE_FILE, InputError, read_files
    from muster.telemetry.usage.inputs.question import Notes

    notes = Notes()
    try:
        inputs = read_files(paths, frozenset(), notes)
    except InputError as error:
        raise BadInput(str(error)) from error
    for question in inputs.questions:
        if question.text == WHOLE_FILE:
            raise BadInput(f"{question.source}: {question.query.doubt}", "check it with promtool check rules")
    if inputs.mistakes:
        raise BadInput("; ".join(inputs.mistakes[:_MISTAKES_SHOWN]), "check it with promtool check rules")
    for text in notes.texts:
        note(text)
    return inputs.rules


def _timed(rule: Rule, interval_s: float) -> TimedRule:
    from muster.telemetry.guard.rules.pricedrules import TimedRule

    return TimedRule(rule.name, rule.group, rule.source, rule.expr, rule.interval_s or interval_s)


def _print(found: list[PricedRule], limit: int) -> None:
    problems = [each for each in found if each.problem]
    quiet = [each for each in found if not each.problem]
    shown = [*problems, *quiet[:limit]]
    print_table(
        ["RULE", "GROUP", "EVERY", "SERIES", "SAMPLES", "COST/DAY", "PROBLEM"],
        [
            [
                each.rule.name,
                each.rule.group or "-",
                duration(each.rule.interval_s),
                f"{each.series:,}" if each.known != "unknown" else "?",
                f"{each.samples:,}" if each.known != "unknown" else "?",
                f"{each.cost_per_day:.3g}" if each.known != "unknown" else "?",
                "yes" if each.problem else "-",
            ]
            for each in shown
        ],
        optional=("GROUP",),
    )
    for each in problems:
        say(f"{each.rule.source}: {each.problem}")
    for each in [each for each in quiet if each.known != "unknown" and not each.series][:_MISTAKES_SHOWN]:
        note(f"{each.rule.source} matches no series now: {' '.join(each.rule.expr.split())[:_EXPR_SHOWN]}")
    if len(quiet) > limit:
        note(f"{len(quiet) - limit} cheaper rules are not shown; --limit shows more")
