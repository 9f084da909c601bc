"""python -m bench.network: the network's figures with their peers in the same run.

Throughput between namespaces varies from run to run by a factor of 2 to 4, so compare CPU time per packet and ratios.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Final

import click
from rich.table import Table

from bench.report import Goal, Report, emit

PARTS: Final = ("accounting", "allocator", "uplink_simulation", "shaping", "cni", "addresses")
"""What a run measures without `--part`."""
EXTRA_PARTS: Final = ("mechanisms",)
"""Parts that run only if they are named."""


@click.command()
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice((*PARTS, *EXTRA_PARTS)),
    help=f"Only these; repeatable. {', '.join(EXTRA_PARTS)} runs only if it is named.",
)
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 100), help="Runs of each part.")
@click.option("--json", "target", default="-", help="A file for the report; it is the last line of stdout in any case.")
def main(parts: tuple[str, ...], repetitions: int, target: str) -> None:
    """Measure the network's parts."""
    figures: dict[str, float] = {}
    goals: list[Goal] = []
    tables: list[Table] = []
    for part in parts or PARTS:
        print(f"{part} ...", file=sys.stderr)
        started = time.monotonic()
        found, wanted = importlib.import_module(f"bench.network.{part}").measure(repetitions)
        table = Table("figure", "median", "least", "most", title=f"{part}, {time.monotonic() - started:.0f} s")
        for name, value in found.items():
            if not name.endswith(("_min", "_max")):
                ends = (found.get(f"{name}{end}") for end in ("_min", "_max"))
                table.add_row(name, f"{value:g}", *("" if end is None else f"{end:g}" for end in ends))
        figures |= {f"{part}_{name}": value for name, value in found.items()}
        goals += wanted
        tables.append(table)
    emit(Report("network", figures, goals), target, tables)


if __name__ == "__main__":
    main()
