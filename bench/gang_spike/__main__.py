"""python -m bench.gang_spike: gangs of whole-node pods that appear at once, on the real API server."""

from __future__ import annotations

import logging
import os
import sys

import click
from rich.console import Console
from rich.logging import RichHandler

from bench.gang_spike import figures
from bench.gang_spike.outcome import Outcome
from bench.gang_spike.shape import Shape
from bench.gang_spike.sides import SIDES
from bench.gang_spike.spike import measure
from bench.report import console, emit
from bench.running import interrupted
from muster.controlplane.goprograms import NotBuiltError
from muster.controlplane.programs import ControlPlaneUnavailableError


@click.command()
@click.option("--nodes", default=5000, show_default=True, type=click.IntRange(1, 15000), help="Whole nodes.")
@click.option("--gangs", default="1x5000", show_default=True, help="GANGSxPODS; several with commas between them.")
@click.option("--side", "sides", default=",".join(SIDES), show_default=True, help="Only these.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 50), help="Of every side.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, help="Seconds a spike may take.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(nodes: int, gangs: str, sides: str, repetitions: int, timeout_s: float, target: str) -> None:
    """Create gangs of pods that take a whole node each, and measure until the last is bound.

    Every spike has a control plane of its own. Sides take turns, so that whatever else the machine does meets all.
    """
    out = console()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=out)])
    shapes = _shapes(gangs, nodes)
    names = sides.split(",")
    if unknown := [name for name in names if name not in SIDES]:
        raise click.UsageError(f"--side: there is no {', '.join(unknown)}; there are {', '.join(SIDES)}")
    outcomes: list[Outcome] = []
    loads = [os.getloadavg()[0]]
    failed: list[str] = []

    async def run() -> None:
        for shape in shapes:
            for repetition in range(repetitions):
                for name in names:
                    try:
                        outcome = await measure(SIDES[name], shape, nodes, repetition, timeout_s)
                    except (ControlPlaneUnavailableError, NotBuiltError):
                        raise
                    except Exception as error:  # one that fails must not cost the figures of an hour
                        failed.append(name)
                        out.print(f"{name}: {type(error).__name__}: {error}", markup=False)
                        continue
                    outcomes.append(outcome)
                    loads.append(os.getloadavg()[0])
                    _tell(out, outcome)

    stopped = interrupted("gang_spike", out, run)
    emit(figures.report(outcomes, nodes, loads), target, figures.tables(outcomes))
    if stopped or failed:
        sys.exit(130 if stopped else 1)


def _shapes(gangs: str, nodes: int) -> list[Shape]:
    try:
        shapes = [Shape.parse(each) for each in gangs.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--gangs: {error}") from None
    for shape in shapes:
        if shape.pods > nodes:
            raise click.UsageError(f"--gangs: {shape} needs {shape.pods} nodes, there are {nodes}")
    return shapes


def _tell(out: Console, outcome: Outcome) -> None:
    end = f"{outcome.all_bound_s:.2f} s" if outcome.all_bound_s is not None else f"not in time ({outcome.bound} bound)"
    cpu = ", ".join(f"{role} {used:.1f}" for role, used in sorted(outcome.cpu_s.items()))
    memory = f"; {outcome.rss_peak_mb:.0f} MB" if outcome.rss_peak_mb is not None else ""
    load = os.getloadavg()[0]
    out.print(
        f"{outcome.side:>12} {outcome.shape!s:>7}  created {outcome.created_s:.2f} s, all bound {end}; "
        f"CPU s: {cpu}{memory}; load {load:.1f}",
        highlight=False,
    )


main()
