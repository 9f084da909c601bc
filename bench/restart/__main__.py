"""python -m bench.restart: time to useful and API writes of a restart, Muster beside JobSet."""

from __future__ import annotations

import logging
import os
import sys

import click
from rich.console import Console
from rich.logging import RichHandler

from bench.audit import total
from bench.report import console, emit
from bench.restart import figures, jobset, muster
from bench.restart.cluster import FAULTS
from bench.restart.outcome import RANKS_RUNNING, Outcome
from bench.running import interrupted

_SIDES = {"muster": muster.measure, "jobset": jobset.measure}


@click.command()
@click.option("--sizes", default="4,64,512", show_default=True, help="Ranks of each gang, one to a node.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 50), help="Faults of each kind.")
@click.option("--side", "sides", multiple=True, type=click.Choice(list(_SIDES)), help="Only this one.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
@click.option("--writes", "show_writes", is_flag=True, help="Print who wrote what after each fault.")
def main(sizes: str, repetitions: int, sides: tuple[str, ...], target: str, show_writes: bool) -> None:
    """Break gangs of simulated ranks on a real control plane and measure the way back."""
    out = console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=out)])
    try:
        gangs = sorted({int(size) for size in sizes.split(",")})
    except ValueError:
        raise click.UsageError(f"--sizes takes numbers with commas between them, not {sizes!r}") from None
    if gangs[0] < 2:
        raise click.UsageError("--sizes: a gang has two ranks at least")
    outcomes: list[Outcome] = []
    loads = [os.getloadavg()[0]]
    failed: list[str] = []

    async def run() -> None:
        for side in sides or tuple(_SIDES):
            try:
                async for outcome in _SIDES[side](gangs, FAULTS, repetitions):
                    outcomes.append(outcome)
                    loads.append(os.getloadavg()[0])
                    _tell(out, outcome, show_writes)
            except TimeoutError as error:
                failed.append(side)
                out.print(f"{side}: {error}", *getattr(error, "__notes__", ()), sep="\n", markup=False)

    stopped = interrupted("restart", out, run)
    emit(figures.report(outcomes, loads), target, figures.tables(outcomes))
    if stopped or failed:
        sys.exit(130 if stopped else 1)


def _tell(out: Console, outcome: Outcome, show_writes: bool) -> None:
    out.print(
        f"{outcome.side:>6} {outcome.ranks:>4} ranks  {outcome.fault:<11}  all running after "
        f"{outcome.stages[RANKS_RUNNING]:6.2f} s  {total(outcome.writes):>5} writes"
    )
    if show_writes:
        for what, count in outcome.writes.most_common():
            out.print(f"        {count:>5} {what}")


main()
