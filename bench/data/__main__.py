"""python -m bench.data: what reading shards and saving checkpoints costs, against a local S3 server."""

from __future__ import annotations

import logging
import sys

import click
from rich.logging import RichHandler

from bench.data import figures, reading, restoring, saving, sharing, stage
from bench.data.processes import Measured
from bench.data.samples import FULL, QUICK
from bench.report import console, emit
from muster.controlplane.goprograms import NotBuiltError

PARTS = {
    "cold": reading.cold,
    "warm": reading.warm,
    "readers": sharing.readers,
    "gang": sharing.gang,
    "saves": saving.saves,
    "restores": restoring.restores,
}


@click.command()
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 50), help="Of every measurement.")
@click.option("--quick", is_flag=True, help="A tenth of the data, and each measurement once.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this one.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(repetitions: int, quick: bool, parts: tuple[str, ...], target: str) -> None:
    """Measure the data path, with its peers in the same run."""
    out = console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=out)])

    def say(line: str) -> None:
        out.print(line, markup=False, highlight=False, soft_wrap=True)

    results: dict[str, dict[str, list[Measured]]] = {}
    try:
        with stage.staged(QUICK if quick else FULL) as staged:
            for name, measure in PARTS.items():
                if not parts or name in parts:
                    say(f"--- {name}")
                    results[name] = measure(staged, 1 if quick else repetitions, say)
            total = staged.total_bytes
    except NotBuiltError as error:
        out.print(f"bench.data: {error}")
        sys.exit(3)
    emit(figures.report(results, total), target, figures.tables(results))


main()
