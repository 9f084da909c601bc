"""python -m bench.guard: Prometheus with 1,000,000 series, with and without the guard, and what the guard costs.

For Debian's release and the newest (`make prometheus`). A repetition is a server that replays the same log. The guard
comes first in each, so that memory that Go keeps after a dear query counts against neither way.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
from rich.table import Table

from bench.guard.estimates import FACTOR, SMALL
from bench.guard.run import PARTS, Run
from bench.guard.servers import copied, fill, releases, using
from bench.report import Goal, Report, at_most, emit, spread

ADDED_MS: Final = 2.0
REPLAY_FACTOR: Final = 1.25


@click.command()
@click.option("--series", default=1_000_000, show_default=True, type=click.IntRange(10_000), help="Series stored.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; repeatable.")
@click.option("--server", "folders", multiple=True, help="Folder of a Prometheus; repeatable. Default: all found.")
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(1, 100), help="Runs of each part.")
@click.option("--lasting-s", default=15.0, show_default=True, type=click.FloatRange(1), help="Of the users.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(
    series: int, parts: tuple[str, ...], folders: tuple[str, ...], repetitions: int, lasting_s: float, target: str
) -> None:
    """Measure the guard with every release of Prometheus that is here."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers and their data are removed
    figures: dict[str, float] = {"series": float(series)}
    goals: list[Goal] = []
    tables: list[Table] = []
    found = releases(folders)
    if not found:
        raise click.ClickException("there is no Prometheus: run tools/ci-packages or 'make prometheus'")
    with tempfile.TemporaryDirectory(prefix="muster-bench-guard-") as temporary:
        folder = Path(temporary)
        with using(found[-1]):
            print(f"{found[-1].name} scrapes {series} series ...", file=sys.stderr)
            filled = fill(folder / "filled", series)
        for release in found:
            with using(release):
                run = Run(release, copied(filled, folder / release.name), lasting_s)
                run.all(parts or PARTS, repetitions)
            goals += _goals(run)
            tables.append(_table(run))
            for key, values in run.values.items():
                spread(f"{release.name}_{key}", values, figures)
    emit(Report("guard", figures, goals), target, tables)


def _goals(run: Run) -> list[Goal]:
    got: dict[str, float] = {}
    for key, values in run.values.items():
        spread(key, values, got)
    wanted = {
        "latency_light_added_p50_ms": ADDED_MS,
        "latency_light_added_p99_ms": ADDED_MS,
        **{f"estimates_{of}_{what}_factor_p90": FACTOR for of in ("fitted", "held_out") for what in SMALL},
        "users_guarded_ended": 0.0,
        "users_guarded_ordinary_lost": 0.0,
    }
    goals = [at_most(f"{run.release.name}: {key}", limit, got[key]) for key, limit in wanted.items() if key in got]
    if "predicted_peak_mb" in got:
        for key in ("undisturbed_s", "peak_mb"):
            pair = got[f"predicted_{key}"], got[f"replay_{key}"]
            off = max(pair) / min(pair)
            goals.append(at_most(f"{run.release.name}: predicted against real replay, {key}", REPLAY_FACTOR, off))
    return goals


def _table(run: Run) -> Table:
    table = Table("figure", "median", "least", "most", title=run.release.name)
    for key, values in run.values.items():
        each: dict[str, float] = {}
        spread("x", values, each)
        table.add_row(key, *(f"{each[name]:g}" for name in ("x", "x_min", "x_max")))
    return table


if __name__ == "__main__":
    main()
