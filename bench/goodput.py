"""What failures leave of 30 days on 2,048 nodes: no care, cordon and evict, and Muster's remediation.

Causes and their frequency are published, the schedule of the faults is the same for all three; what is assumed is
printed beside the figures. Jobs restart the same way in all three, as Muster restarts them: only the care differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.table import Table

from bench.report import Report, at_least, emit, spread
from muster.sim.replay.faults import CAUSES, CAUSES_MTBF_HOURS, CORDON_AND_EVICT, MUSTER, NO_CARE, Care
from muster.sim.replay.job import job_of_gpus, uniform_nodes
from muster.sim.replay.replay import Conditions, Replay

GPUS = 8
SHARES = (1 / 2, *[1 / 16] * 7)
"""Of the nodes: one large job and seven smaller ones; the rest, one in sixteen, is spare."""


def goodput(care: Care, arguments: argparse.Namespace, seed: int) -> tuple[float, int, int]:
    """Return the share of the jobs' time that was lasting work, interruptions, and faults."""
    jobs = [
        job_of_gpus(f"job-{number}", 0.0, arguments.days * 86400 * 2, int(arguments.nodes * share) * GPUS, GPUS)
        for number, share in enumerate(SHARES)
    ]
    conditions = Conditions(
        forecasts=False,
        seed=seed,
        days=arguments.days,
        mtbf_hours=arguments.mtbf_hours,
        checkpoint_minutes=arguments.checkpoint_minutes,
        restart_minutes=arguments.restart_minutes,
        care=care,
    )
    outcome = Replay(uniform_nodes(arguments.nodes, GPUS), jobs, conditions).run()
    useful = sum(run.work_s(outcome.end_s) * run.job.gpus for run in outcome.runs)
    asked = outcome.end_s * sum(job.gpus for job in jobs)
    return useful / asked, sum(run.interruptions for run in outcome.runs), outcome.node_failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--mtbf-hours", type=float, default=CAUSES_MTBF_HOURS, help="of one node")
    parser.add_argument("--checkpoint-minutes", type=float, default=30.0)
    parser.add_argument("--restart-minutes", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=5, help="seeds")
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    table = Table(
        "care", "goodput", "interruptions", "faults", title=f"{arguments.days:g} days, {arguments.nodes:,} nodes"
    )
    for care in (NO_CARE, CORDON_AND_EVICT, MUSTER):
        runs = [goodput(care, arguments, seed) for seed in range(arguments.runs)]
        name = care.name.replace(" ", "_").lower()
        spread(f"goodput_{name}", [run[0] for run in runs], figures)
        stopped, faults = (statistics.median(run[index] for run in runs) for index in (1, 2))
        figures |= {f"interruptions_{name}": stopped, f"faults_{name}": faults}
        table.add_row(care.name, f"{figures[f'goodput_{name}']:.1%}", f"{stopped:,.0f}", f"{faults:,.0f}")
    assumed = Table("assumed", "", title=f"{len(CAUSES)} published causes; the rest is ours")
    for care in (NO_CARE, CORDON_AND_EVICT, MUSTER):
        assumed.add_row(care.name, ", ".join(f"{key} {value}" for key, value in vars_of(care).items()))
    best_other = max(figures["goodput_off"], figures["goodput_cordon_and_evict"])
    goals = [at_least("goodput_muster", best_other, figures["goodput_muster"])]
    emit(Report("goodput", figures, goals), arguments.json, [table, assumed])


def vars_of(care: Care) -> dict[str, object]:
    return {name: getattr(care, name) for name in care.__struct_fields__ if name != "name"}


if __name__ == "__main__":
    main()
