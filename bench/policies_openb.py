"""OpenB's nodes and tasks for bench.policies, with as many nodes as give the requested load."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from muster.sim.replay.job import NodeShape, Workload, within
from muster.sim.replay.openb import read_nodes, read_tasks
from muster.sim.replay.table import read_text

NODES, TASKS = "openb_nodes.csv", "openb_pods.csv"


def openb(folder: Path, *, load: float, seed: int) -> tuple[Sequence[NodeShape], Workload, float]:
    """Return nodes, jobs and the days in which jobs arrive. Raises BadTrace.

    The whole cluster is mostly idle, so the seed chooses a part of its nodes with GPUs, for which the tasks request
    `load` of the GPU time. Tasks without GPUs, and those that none of the chosen nodes can run, are left out.
    """
    nodes = [node for node in read_nodes(folder / NODES) if node.gpus]
    path = folder / TASKS
    tasks = within(read_tasks(path, read_text(path)), nodes, least_gpus=1, days=0, most=0)
    span_s = max(job.submit_s for job in tasks.jobs)
    requested = sum(job.gpus * min(job.run_s, span_s - job.submit_s) for job in tasks.jobs)
    share = requested / (sum(node.gpus for node in nodes) * span_s * load)
    count = min(len(nodes), max(1, round(share * len(nodes))))
    chosen = random.Random(f"openb {seed}").sample(nodes, count)
    return chosen, within(tasks, chosen, least_gpus=1, days=0, most=0), span_s / 86400
