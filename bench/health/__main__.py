"""How long it takes until many nodes that break at once are out of use, and their gangs run elsewhere.

A real control plane with nodes that report Ready, the controller as the chart installs it, and a node agent
for each node that breaks. The clock starts at the line in the kernel's log. Agents share one process, and
all share the cores with the API server. With default settings so many faults at once are not charged to a
node: then nearly all stay in use.

Gangs run on modelled nodes with modelled supervisors, a rank a node, with 10 s to stop and a
PodDisruptionBudget each. There the clock starts when the first agent's finding is written.

The side `quiet` breaks nothing: it counts for an hour what is written meanwhile, and by whom.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

import msgspec
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.health.drain import drain_all
from bench.health.quarantine import DEFAULT, OPEN, fault_many
from bench.health.quiet import quiet
from bench.report import Report, at_most, console, emit, spread
from bench.running import interrupted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=7500)
    parser.add_argument("--faulty", type=int, default=750)
    parser.add_argument("--gangs", type=int, default=24)
    parser.add_argument("--size", type=int, default=64, help="pods of a gang, one a node")
    parser.add_argument("--side", default="quarantine,breaker,drain", help="which of them, separated by commas")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=60, help="of the side quiet")
    parser.add_argument("--agents", type=int, default=50, help="of the side quiet, each for a node")
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    out = console()
    taken: dict[str, list[float]] = {}

    async def measure() -> None:
        sides = arguments.side.split(",")
        for _ in range(arguments.repetitions if "quarantine" in sides else 0):
            found = await fault_many(arguments.nodes, arguments.faulty, OPEN, all_of_them=True)
            note(
                {
                    "quarantined_all_s": found.quarantined_s[-1],
                    "quarantined_p50_s": median(found.quarantined_s),
                    "quarantined_first_s": found.quarantined_s[0],
                    "quarantine_controller_cpu_s": found.controller_cpu_s,
                    "quarantine_apiserver_cpu_s": found.apiserver_cpu_s,
                    "quarantine_agents_cpu_s": found.agents_cpu_s,
                    "quarantine_controller_rss_mb": found.controller_rss_mb,
                    "quarantine_load_average": os.getloadavg()[0],
                }
            )
        if "breaker" in sides:
            held = await fault_many(arguments.nodes, arguments.faulty, DEFAULT, all_of_them=False)
            note({"default_quarantined_nodes": float(len(held.quarantined_s))})
        for _ in range(arguments.repetitions if "drain" in sides else 0):
            drained = await drain_all(arguments.gangs, arguments.size)
            note({f"drain_{name}": float(value) for name, value in msgspec.structs.asdict(drained).items()})
        if "quiet" in sides:
            rest = await quiet(arguments.nodes, arguments.agents, arguments.minutes)
            note({f"quiet_{name}": float(value) for name, value in rest.figures(arguments.nodes).items()})
            for who, writes in sorted(rest.writes.items()):
                out.print(f"{who}: " + ", ".join(f"{many} {what}" for what, many in writes.most_common()))

    def note(one: dict[str, float]) -> None:
        for name, value in one.items():
            taken.setdefault(name, []).append(value)
        out.print("  ".join(f"{name} {value:,.1f}" for name, value in one.items()))

    interrupted("health", out, measure)
    figures: dict[str, float] = {
        "nodes": arguments.nodes,
        "faulty": arguments.faulty,
        "drained_pods": arguments.gangs * arguments.size,
        "repetitions": max(map(len, taken.values()), default=0),
    }
    for name, values in taken.items():
        spread(name, values, figures)
    table = Table("", "median", "least", "most")
    for name in taken:
        table.add_row(name, *(f"{figures[name + suffix]:,.2f}" for suffix in ("", "_min", "_max")))
    wanted = [("quarantined_all_s", 5.0), ("default_quarantined_nodes", 10.0), ("drain_restarted_s", 30.0)]
    wanted += [("drain_charged", 0.0)]
    wanted += [("quiet_controller_other_writes_per_hour", 0.0), ("quiet_agent_writes_most_per_hour", 13.0)]
    goals = [at_most(name, most, figures[name]) for name, most in wanted if name in figures]
    emit(Report("health", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
