"""Users change jobs that wait for nodes: they delete them, resize them, or exclude a node."""

from __future__ import annotations

import asyncio
import contextlib

from fuzz.backfill import CONSTRAINED, DELETED, WAITED_S, Change
from fuzz.training import Training
from fuzz.workload import JobSpec, Owner
from muster.kube.errors import NotFound


async def happens(change: Change, spec: JobSpec, owner: Owner, training: Training | None, nodes: list[str]) -> None:
    """Wait until the job waits for nodes; then change it. If it does not wait soon, nothing happens.

    Args:
        change: what happens.
        spec: the job.
        owner: of the job, if no controller of training jobs runs.
        training: the jobs of that controller, if it runs.
        nodes: names of nodes; a job may exclude one of them.
    """
    jobs = training or owner
    await asyncio.sleep(spec.arrives_s + change.after_s)
    for _ in range(int(WAITED_S)):
        if jobs.waits(change.job):
            break
        await asyncio.sleep(1.0)
    else:
        return
    if change.kind == DELETED:
        with contextlib.suppress(NotFound):
            jobs.delete(change.job)
        return
    size = spec.size if change.kind == CONSTRAINED else 1 + change.pick % spec.size
    excluded = nodes[change.pick % len(nodes)] if change.kind == CONSTRAINED and nodes else ""
    if training is not None:
        await training.change(change.job, size, excluded)
    else:
        owner.change(change.job, size, excluded)
