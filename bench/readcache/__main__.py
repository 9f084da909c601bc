"""The read cache against the kube-apiserver behind it, in the same run on the same machine.

Two shapes of watches: one watch per node that sees only the pods of its node, and watches that all see every event.
Each side gets a control plane of its own. Plain HTTP is measured in the smallest shape that sees everything. The load
generator shares the processor with both sides, so compare CPU per delivered event, which is counted per process.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from statistics import median

from rich.table import Table

from bench.readcache import fanout, listing, restart
from bench.readcache.fanout import Shape
from bench.report import Goal, Report, at_most, emit, spread

KUBE_KIB = 79.0
"""kube-apiserver's memory per watch with TLS (issue 15)."""


def shapes(arguments: argparse.Namespace) -> list[Shape]:
    """The shapes to run."""
    made = []
    if arguments.node_watchers:
        count = arguments.node_watchers
        made.append(
            Shape(
                f"node_{count}",
                count,
                True,
                count,
                arguments.node_events_per_s,
                arguments.paced_s,
                arguments.node_burst,
            )
        )
    for count in arguments.all_watchers:
        per_s = max(1.0, arguments.deliveries_per_s / count)
        burst = max(10, arguments.burst_deliveries // count)
        made.append(Shape(f"all_{count}", count, False, arguments.pods, per_s, arguments.paced_s, burst))
    return made


async def run(arguments: argparse.Namespace) -> tuple[dict[str, float], list[Goal], list[Table]]:
    """Run everything that the arguments ask for."""
    figures: dict[str, float] = {}
    goals: list[Goal] = []
    tables: list[Table] = []
    wanted = shapes(arguments)
    plain = min((shape for shape in wanted if not shape.per_node), key=lambda shape: shape.watchers, default=None)
    for shape in wanted:
        sides = [side for side in arguments.side if side != "plain" or shape is plain]
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for repetition in range(arguments.repetitions):
            for side in sides if repetition % 2 == 0 else reversed(sides):
                found[side].append(await fanout.run(shape, side))
                print(shape.name, side, _short(found[side][-1]), file=sys.stderr)
        tables.append(_table(shape.name, found))
        for side, runs in found.items():
            for name in runs[0]:
                spread(f"{shape.name}_{side}_{name}", [run[name] for run in runs], figures)
        goals += goals_of(shape, found)
    if arguments.listed:
        lists = await listing.run(arguments.listed, arguments.repetitions)
        table = Table(f"{arguments.listed} pods listed", *lists)
        for name in lists["direct"]:
            table.add_row(name, *(f"{median(values[name]):.4g}" for values in lists.values()))
        tables.append(table)
        for side, values in lists.items():
            for name, each in values.items():
                spread(f"list_{side}_{name}", each, figures)
    if arguments.restarted:
        again = await restart.run(arguments.restarted, arguments.restart_pods)
        figures |= {f"restart_{name}": round(value, 3) for name, value in again.items()}
        goals.append(at_most("whole states from the API server after a restart of the cache", 1, again["states"]))
        goals.append(at_most("watches of the API server after it", 1, again["watches_upstream"]))
    return figures, goals, tables


def goals_of(shape: Shape, found: dict[str, list[dict[str, float]]]) -> list[Goal]:
    """The goals of one shape, from the runs of each side."""
    goals = []
    for side, runs in found.items():
        if side == "direct":
            continue
        lost = max(run["dropped"] + run["missed"] + run["burst_missed"] for run in runs)
        goals.append(at_most(f"{shape.name} {side}: readers dropped and events missed", 0, lost))
    if "cache" in found:
        memory = median(run["kib_per_watcher"] for run in found["cache"])
        goals.append(at_most(f"{shape.name}: KiB per watcher with TLS", KUBE_KIB, memory))
        if "direct" in found:
            peer = median(run["idle_kib_per_watcher"] for run in found["direct"])  # without what its writes leave
            goals.append(at_most(f"{shape.name}: memory per watcher of kube-apiserver's", 1.0, memory / peer))
    return goals


def _table(title: str, found: dict[str, list[dict[str, float]]]) -> Table:
    table = Table(title, *found)
    for name in next(iter(found.values()))[0]:
        table.add_row(name, *(f"{median(run[name] for run in runs):.4g}" for runs in found.values()))
    return table


def _short(values: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.readcache", description=__doc__)
    parser.add_argument("--node-watchers", type=int, default=7500, help="watches that see one node each; 0: none")
    parser.add_argument("--all-watchers", type=_numbers, default=[1000, 3000], help="watches that see everything")
    parser.add_argument("--pods", type=int, default=1000, help="pods for watches that see everything")
    parser.add_argument("--side", type=lambda text: text.split(","), default=["direct", "cache", "plain"])
    parser.add_argument("--paced-s", type=float, default=20.0, help="how long lag and CPU are measured")
    parser.add_argument("--node-events-per-s", type=float, default=50.0, help="while lag and CPU are measured")
    parser.add_argument("--node-burst", type=int, default=2000)
    parser.add_argument("--deliveries-per-s", type=float, default=6000.0, help="while lag and CPU are measured")
    parser.add_argument("--burst-deliveries", type=int, default=300_000)
    parser.add_argument("--listed", type=int, default=30_000, help="pods to list; 0: none")
    parser.add_argument("--restarted", type=int, default=3000, help="clients at the restart; 0: none")
    parser.add_argument("--restart-pods", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    figures, goals, tables = asyncio.run(run(arguments))
    emit(Report("readcache", figures, goals), arguments.json, tables)


if __name__ == "__main__":
    main()
