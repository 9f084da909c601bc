"""Policies of backfill on the same jobs: how full the cluster is, how long jobs wait, and what backfill costs.

Jobs come from models of published statistics, or from OpenB's trace (`--models openb --openb FOLDER`, the folder with
the two files of alibaba/clusterdata, cluster-trace-gpu-v2023). Nodes fail as published, and every policy gets the same
jobs and the same failures. Jobs arrive for some days, and the replay ends when the last of them has ended, so waits are
of all jobs under every policy. Use of the cluster is of the days in which jobs arrive.

Only the policy `preemptible` depends on the share of restartable jobs, so the others are replayed once for all shares.
The full matrix is 4 models, 5 seeds, 3 loads and 6 policies, one of them with 2 shares: 420 replays. They take one to
two hours with two processes on the two threads of one core. A small run of half a minute:

    python -m bench.policies --models kalos --seeds 1 --loads 85 --days 4 --json -
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
from rich.table import Table

from bench.policies_figures import Replayed, figures_of, replayed, together
from bench.policies_greedy import greedy
from bench.policies_openb import NODES as OPENB_NODES
from bench.policies_openb import TASKS as OPENB_TASKS
from bench.policies_openb import openb
from bench.report import Goal, Report, at_least, at_most, emit
from muster.api.scheduling import BackfillPolicy
from muster.scheduler.decide import decide
from muster.sim.replay.arrivals import made_up
from muster.sim.replay.cluster import Decide
from muster.sim.replay.job import Workload, uniform_nodes, with_limits, with_restartable
from muster.sim.replay.published import NODE_MTBF_HOURS
from muster.sim.replay.replay import Conditions, Replay

GPUS = 8
NODES = {"kalos": 60, "seren": 100, "philly": 60, "helios": 100}
OPENB = "openb"
DEFAULT_LIMIT_S = 86400


def _default_limits(workload: Workload) -> Workload:
    """Return the jobs with a limit of one day. A job that runs longer states the next whole number of days."""
    jobs = [
        msgspec.structs.replace(job, limit_s=max(1, math.ceil(job.run_s / DEFAULT_LIMIT_S)) * DEFAULT_LIMIT_S)
        for job in workload.jobs
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


class Policy(msgspec.Struct, frozen=True):
    """A policy of the bench: the scheduler, its own policy, and the time limits that jobs state."""

    policy: BackfillPolicy
    planner: Decide = decide
    limits: Callable[[Workload], Workload] | None = None


SHARED = "preemptible"
"""The policy that depends on the share of restartable jobs."""
POLICIES = {
    "strict": Policy("strict"),
    "easy": Policy("easy"),
    "oracle": Policy("easy", limits=lambda workload: with_limits(workload, 1.0)),
    "slurm_like": Policy("easy", limits=_default_limits),
    "greedy": Policy("strict", planner=greedy),
    "preemptible": Policy("preemptible"),
}
"""`oracle`: each limit is the run time. `slurm_like`: limits are one day by default. `greedy`: no reservations."""


class Case(msgspec.Struct, frozen=True):
    """One replay. `load` is the requested share of the GPU time, `share` that of restartable jobs.

    `openb` is the folder of OpenB's files, for the model of this name.
    """

    model: str
    load: float
    share: float
    policy: str
    seed: int
    days: float
    openb: str = ""

    @property
    def group(self) -> tuple[str, float, float, str]:
        """All but the seed."""
        return self.model, self.load, self.share, self.policy


def play(case: Case) -> Replayed:
    """Replay one case."""
    chosen, days = POLICIES[case.policy], case.days
    if case.model == OPENB:
        nodes, workload, days = openb(Path(case.openb), load=case.load, seed=case.seed)
    else:
        count = NODES[case.model]
        nodes = uniform_nodes(count, GPUS)
        workload = made_up(
            case.model, nodes=count, gpus=GPUS, days=days, jobs=0, least_gpus=0, seed=case.seed, load=case.load
        )
    workload = with_restartable(workload, case.share, case.seed)
    if chosen.limits is not None:
        workload = chosen.limits(workload)
    conditions = Conditions(seed=case.seed, mtbf_hours=NODE_MTBF_HOURS, policy=chosen.policy, forecasts=False)
    outcome = Replay(nodes, workload.jobs, conditions, planner=chosen.planner).run()
    return replayed(outcome, conditions, days)


Found = Mapping[tuple[str, float, float, str], Mapping[str, float]]
_OF_RESTARTABLE = "restartable"
"""Part of the names of figures that depend on the share of restartable jobs under every policy."""


def _for_all_shares(found: Found, shares: Sequence[float]) -> Found:
    """Return the figures with those of the other policies also under the shares that were not replayed for them."""
    every = dict(found)
    for (model, load, share, policy), figures in found.items():
        if policy != SHARED:
            same = {name: value for name, value in figures.items() if _OF_RESTARTABLE not in name}
            every |= {(model, load, other, policy): same for other in shares if other != share}
    return every


def goals(found: Found) -> list[Goal]:
    """Return the goals of `preemptible`, each the worst case of all models, loads and shares."""
    mine = {group[:3]: figures for group, figures in found.items() if group[3] == "preemptible"}

    def against(policy: str, field: str, models: Sequence[str] = tuple(NODES)) -> list[float]:
        """Ratios to another policy; cases without such jobs, or without waits in both, do not count."""
        ratios = []
        for group, figures in mine.items():
            other = found.get((*group, policy))
            if other is None or field not in figures or group[0] not in models:
                continue
            if figures[field] or other[field]:
                ratios.append(figures[field] / other[field] if other[field] else math.inf)
        return ratios

    def worst(values: Sequence[float]) -> float | None:
        return max(values, default=None)

    utilisation = against("oracle", "utilisation")
    return [
        at_most(
            "idle while a restartable job fits",
            0.02,
            worst([figures["idle_while_a_restartable_job_fits"] for figures in mine.values()]),
        ),
        at_least("utilisation against the oracle's", 0.97, min(utilisation, default=None)),
        at_most(
            "P90 wait of jobs up to one node against strict's, kalos and seren",
            0.2,
            worst(against("strict", "wait_p90_up_to_1_node_s", ("kalos", "seren"))),
        ),
        at_most(
            "P90 start of gangs of 32 nodes and more against strict's",
            1.05,
            worst(against("strict", "wait_p90_32_nodes_and_more_s")),
        ),
        at_most(
            "GPU hours done again and held up through backfill, of those in use",
            0.01,
            worst([figures["done_again_by_backfill"] for figures in mine.values()]),
        ),
    ]


def table(found: Found) -> Table:
    """Return the main figures, a row for each case."""
    columns = (
        "model", "load", "restartable", "policy", "in use", "idle, a job waits", "idle, one fits",
        "P90 <=1 node", "P90 2-7", "P90 8-31", "P90 32+", "slowdown <=1", "slowdown 32+", "done again", "asks/job",
    )  # fmt: skip
    made = Table(*columns, title="waits in hours; slowdown: mean; done again: restarts and lost work after asks")
    for (model, load, share, policy), figures in found.items():
        made.add_row(
            model, f"{load:.0%}", f"{share:.0%}", policy,
            *(f"{figures[name]:.1%}" if name in figures else "-" for name in _SHARES),
            *(_hours(figures.get(name)) for name in _WAITS),
            *(f"{figures[name]:.1f}" if name in figures else "-" for name in _SLOWDOWNS),
            f"{figures['done_again_by_backfill']:.2%}", f"{figures['asks_per_job']:.3f}",
        )  # fmt: skip
    return made


_SHARES = ("utilisation", "idle_while_a_job_waits", "idle_while_a_restartable_job_fits")
_WAITS = (
    "wait_p90_up_to_1_node_s", "wait_p90_2_to_7_nodes_s", "wait_p90_8_to_31_nodes_s", "wait_p90_32_nodes_and_more_s",
)  # fmt: skip
_SLOWDOWNS = ("bounded_slowdown_mean_up_to_1_node", "bounded_slowdown_mean_32_nodes_and_more")


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:.2f}"


def _listed(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = set(names) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
        return names

    return read


def _shares(text: str) -> list[float]:
    """Read a list of percentages."""
    return [float(each) / 100 for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_listed((*NODES, OPENB)), default=list(NODES), help="comma-separated")
    parser.add_argument("--openb", default="", metavar="FOLDER", help=f"with {OPENB_NODES} and {OPENB_TASKS}")
    parser.add_argument("--policies", type=_listed(tuple(POLICIES)), default=list(POLICIES), help="comma-separated")
    parser.add_argument("--loads", type=_shares, default=[0.7, 0.85, 0.95], help="%% of the GPU time that jobs request")
    parser.add_argument("--restartable", type=_shares, default=[1.0, 0.5], help="%% of the jobs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this, exclusive")
    parser.add_argument("--days", type=float, default=10.0, help="in which jobs arrive")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    if OPENB in arguments.models and not arguments.openb:
        parser.error("the model openb needs --openb FOLDER")
    shares = arguments.restartable
    cases = [
        Case(model, load, share, policy, seed, days=arguments.days, openb=arguments.openb)
        for model, load, policy, seed in itertools.product(
            arguments.models, arguments.loads, arguments.policies, range(arguments.seeds)
        )
        for share in (shares if policy == SHARED else shares[:1])
    ]
    began = time.monotonic()
    parts: dict[tuple[str, float, float, str], list[Replayed]] = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for number, (case, part) in enumerate(zip(cases, pool.map(play, cases), strict=True), start=1):
            parts.setdefault(case.group, []).append(part)
            print(f"\r{number} of {len(cases)} replays", end="", file=sys.stderr, flush=True)
    print(f" in {time.monotonic() - began:.0f} s", file=sys.stderr)
    found = _for_all_shares({group: figures_of(together(each)) for group, each in parts.items()}, shares)
    figures = {
        f"{model}_{load * 100:g}_{share * 100:g}_{policy}_{name}": value
        for (model, load, share, policy), each in found.items()
        for name, value in each.items()
    }
    emit(Report("policies", figures, goals(found)), arguments.json, [table(found)])


if __name__ == "__main__":
    main()
