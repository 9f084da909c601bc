"""How long planning from scratch takes, against another checkout of Muster in the same run.

Both checkouts plan the same cluster, one after the other, each time in a new process. Compare the ratios: other work on
the machine slows both down.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Report, at_most, emit

HERE = Path(__file__).parents[1]
MEASURE = """
import gc, json, sys
sys.path.insert(0, ".")
from bench.plan import from_scratch
from muster.cli.processes.controller import GARBAGE_AFTER
gc.set_threshold(*GARBAGE_AFTER)
print(json.dumps(from_scratch(int(sys.argv[1]), int(sys.argv[2]))))
"""


def measured(checkout: Path, nodes: int, pending: int) -> dict[str, float]:
    """Seconds of one plan from scratch by this checkout, elapsed and of CPU."""
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-c", MEASURE, str(nodes), str(pending)],
        cwd=checkout,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other checkout, after `make setup`")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=10_000, help="gangs that wait")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    rounds = [
        {
            name: measured(checkout, arguments.nodes, arguments.pending)
            for name, checkout in (("old", arguments.old), ("new", HERE))
        }
        for _ in range(arguments.rounds)
    ]
    figures: dict[str, float] = {
        "nodes": arguments.nodes,
        "pending_gangs": arguments.pending,
        "rounds": arguments.rounds,
    }
    for what in ("scratch_s", "scratch_cpu_s"):
        for name in ("old", "new"):
            figures[f"{name}_{what}"] = statistics.median(each[name][what] for each in rounds)
        ratios = sorted(each["new"][what] / each["old"][what] for each in rounds)
        figures[f"{what}_ratio"] = statistics.median(ratios)
        figures[f"{what}_ratio_min"], figures[f"{what}_ratio_max"] = ratios[0], ratios[-1]
    figures = {name: round(figure, 3) for name, figure in figures.items()}
    table = Table("", "", title="planning from scratch, against another checkout")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}")
    goals = [
        at_most("from scratch, share of the other checkout's CPU time", 0.7, figures["scratch_cpu_s_ratio"]),
        at_most("from scratch, share of the other checkout's time", 0.7, figures["scratch_s_ratio"]),
    ]
    emit(Report("plan_against", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
