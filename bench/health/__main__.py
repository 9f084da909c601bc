"""How long it takes until many nodes that break at once are out of use, and what that costs.

A real control plane with nodes that say they are ready, the controller as the chart installs it, and a node agent for
each node that breaks: the clock starts at the line in the kernel's log. Agents share one process, and all share the
cores with the API server. With default settings so many at once are nobody's own fault: then nearly all stay in use.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.health.quarantine import DEFAULT, OPEN, fault_many
from bench.report import Report, at_most, console, emit, spread
from bench.running import interrupted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=7500)
    parser.add_argument("--faulty", type=int, default=750)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    out = console()
    taken: dict[str, list[float]] = {}

    async def measure() -> None:
        for _ in range(arguments.repetitions):
            found = await fault_many(arguments.nodes, arguments.faulty, OPEN, all_of_them=True)
            one = {
                "quarantined_all_s": found.quarantined_s[-1],
                "quarantined_p50_s": median(found.quarantined_s),
                "quarantined_first_s": found.quarantined_s[0],
                "controller_cpu_s": found.controller_cpu_s,
                "apiserver_cpu_s": found.apiserver_cpu_s,
                "agents_cpu_s": found.agents_cpu_s,
                "controller_rss_mb": found.controller_rss_mb,
                "load_average": os.getloadavg()[0],
            }
            for name, value in one.items():
                taken.setdefault(name, []).append(value)
            out.print("  ".join(f"{name} {value:,.1f}" for name, value in one.items()))
        held = await fault_many(arguments.nodes, arguments.faulty, DEFAULT, all_of_them=False)
        taken["default_quarantined_nodes"] = [float(len(held.quarantined_s))]

    interrupted("health", out, measure)
    figures: dict[str, float] = {
        "nodes": arguments.nodes,
        "faulty": arguments.faulty,
        "repetitions": len(taken.get("quarantined_all_s", ())),
    }
    for name, values in taken.items():
        spread(name, values, figures)
    table = Table("", "median", "least", "most", title=f"{arguments.faulty} of {arguments.nodes} nodes break at once")
    for name in taken:
        table.add_row(name, *(f"{figures[name + suffix]:,.2f}" for suffix in ("", "_min", "_max")))
    share = arguments.faulty / arguments.nodes
    goals = [
        at_most(f"{share:.0%} of nodes: quarantined_all_s", 5.0, figures.get("quarantined_all_s")),
        at_most("the default breaker holds: nodes", 10.0, figures.get("default_quarantined_nodes")),
    ]
    emit(Report("health", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
