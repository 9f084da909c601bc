"""How long a simulated month takes: gang jobs after published statistics, on a large cluster whose nodes fail.

Everything `muster simulate` does is timed except forecasts of starts, from the fitting of the model to the report, its
checks included. No peer is
in this run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.table import Table

from bench.report import Report, at_most, emit, spread
from muster.sim.replay.arrivals import made_up
from muster.sim.replay.job import uniform_nodes
from muster.sim.replay.published import CLUSTERS, NODE_MTBF_HOURS
from muster.sim.replay.replay import Conditions, Replay
from muster.sim.replay.report import Report as Replayed
from muster.sim.replay.report import summarise

GPUS = 8


def once(arguments: argparse.Namespace) -> tuple[float, float, Replayed, int, int]:
    """Return wall and CPU seconds, what came out, events and plans."""
    began, cpu_began = time.perf_counter(), time.process_time()
    workload = made_up(
        arguments.like,
        nodes=arguments.nodes,
        gpus=GPUS,
        days=arguments.days,
        jobs=arguments.jobs,
        least_gpus=2 * GPUS,  # every job is a gang of several nodes
        seed=arguments.seed,
    )
    conditions = Conditions(seed=arguments.seed, days=arguments.days, mtbf_hours=arguments.mtbf_hours, forecasts=False)
    outcome = Replay(uniform_nodes(arguments.nodes, GPUS), workload.jobs, conditions).run()
    replayed = summarise(workload, arguments.nodes, conditions, outcome)
    return (
        time.perf_counter() - began,
        time.process_time() - cpu_began,
        replayed,
        outcome.events,
        outcome.plans,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--like", choices=CLUSTERS, default="helios", help="whose published statistics")
    parser.add_argument("--nodes", type=int, default=7500)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=100_000, help="gangs; 0: as many as ask for 80%% of the GPU time")
    parser.add_argument("--mtbf-hours", type=float, default=NODE_MTBF_HOURS, help="of one node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    runs = [once(arguments) for _ in range(arguments.runs)]
    replayed, events, plans = runs[0][2:]
    walls = [run[0] for run in runs]
    figures: dict[str, float] = {}
    spread("wall_s", walls, figures)
    spread("cpu_s", [run[1] for run in runs], figures)
    figures |= {
        "nodes": replayed.nodes,
        "days": replayed.days,
        "gangs": replayed.gangs,
        "pods": replayed.pods,
        "started": replayed.started,
        "events": events,
        "plans": plans,
        "node_failures": replayed.node_failures,
        "interruptions": replayed.interruptions,
        "utilisation": replayed.utilisation,
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    table = Table("", "", title=f"{replayed.source}, {replayed.placements_hash}")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}")
    full = replayed.nodes >= 7500 and replayed.days >= 30 and replayed.gangs >= 100_000
    goals = [at_most("30 days, 7,500 nodes, 100,000 gangs: wall_s", 60.0, figures["wall_s"])] if full else []
    if len({run[2].placements_hash for run in runs}) > 1:
        sys.exit("two runs with one seed came out differently")
    emit(Report("simulate", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
