"""`muster telemetry dearest`: the queries that cost most lately, from a guard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from muster.cli.doctor.page import amount
from muster.cli.errors import CliError, ExitCode
from muster.cli.output import age, note, output_option, print_data, print_table
from muster.cli.telemetry.running import run
from muster.cli.telemetry.server_options import ServerOptions, server_options

if TYPE_CHECKING:
    from muster.telemetry.guard.dearest.page import DearestPage, DearQuery

_QUERY_SHOWN = 60


@click.command("dearest")
@server_options()
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Queries to show.")
@output_option("json", "yaml")
def command(server: ServerOptions, limit: int, output: str) -> int:
    """Show which queries cost most lately, with the dashboard and panel that sent them; the dearest first.

    --prometheus is the address of a guard (`muster guard`), and the credentials are those of one of its callers. A
    caller sees its own queries. Callers and groups in the guard's `dearest.readers` see all. Each replica of a guard
    has a log of its own.

    Recent cost is the sum over all requests. It counts half after each half-life, which is an hour by default.
    """
    page = run(_page(server))
    shown = page.queries[:limit]
    if output:
        from msgspec import to_builtins

        print_data(to_builtins({"of": page.of, "halfLifeSeconds": page.half_life_s, "queries": shown}), output)
        return ExitCode.DONE
    if not shown:
        note("no queries yet")
        return ExitCode.DONE
    print_table(
        ["RECENT COST", "REQUESTS", "REFUSED", "SLOWEST", "LARGEST", "CALLER", "FROM", "LAST", "KIND", "QUERY"],
        [_row(each) for each in shown],
        optional=("LARGEST", "KIND", "SLOWEST", "LAST"),
    )
    if page.of != "all":
        note(f"these are the queries of {page.of}; the guard's dearest.readers see those of all callers")
    return ExitCode.DONE


async def _page(server: ServerOptions) -> DearestPage:
    import msgspec

    from muster.telemetry.guard.dearest.page import PATH, DearestPage
    from muster.telemetry.prometheus.errors import PrometheusError

    async with server.client() as client:
        try:
            body = await client.page(PATH)
            return msgspec.convert(msgspec.json.decode(body)["data"], DearestPage)
        except PrometheusError as error:
            if error.status != 404:
                raise
        except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
            pass
    raise CliError(f"{server.url} is not a guard", "give the address of a guard (docs/guard.md)", ExitCode.NOT_FOUND)


def _row(query: DearQuery) -> list[str]:
    text = query.query if len(query.query) <= _QUERY_SHOWN else f"{query.query[: _QUERY_SHOWN - 1]}…"
    return [
        f"{query.recent_cost:.3g}",
        f"{query.requests:,}",
        f"{query.not_sent:,}" if query.not_sent else "-",
        f"{query.max_s:.3g}s" if query.max_s else "-",
        amount(query.max_answer_bytes, "bytes") if query.max_answer_bytes else "-",
        query.caller,
        _source(query),
        _age(query.last.time),
        query.kind,
        text or "-",
    ]


def _age(at_s: float) -> str:
    """Return the age of a time; "-" if it is not one that the calendar has."""
    try:
        return age(datetime.fromtimestamp(at_s, UTC))
    except (OverflowError, ValueError, OSError):
        return "-"


def _source(query: DearQuery) -> str:
    """Return the dashboard and panel, or the alert rule, that sent the query; "-" if it is not known."""
    if query.rule_uid:
        return f"rule {query.rule_uid}"
    dashboard = query.dashboard_title or query.dashboard_uid
    panel = query.panel_title or (f"panel {query.panel_id}" if query.panel_id else "")
    return " / ".join(part for part in (dashboard, panel) if part) or "-"
