"""`muster stop` and `muster resume`: set spec.suspend to true or false."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.wait_timeout import within
from muster.cli.output import note
from muster.cli.program import prefix
from muster.cli.target import Target, resolve

_STOPPED_S = 120
"""How long after the job's own grace period the pods may take to go and the status to show it."""

if TYPE_CHECKING:
    from muster.cli.target import Cluster


def set_suspend(target: Target, name: str, suspend: bool, wait: bool, timeout_s: int | None = None) -> int:
    """Suspend or resume a job.

    With `wait`, a suspend waits until the job is suspended, and a resume until it runs. Both also return when the job
    has ended. `timeout_s` limits the wait of a resume only; None means no limit.
    """
    return asyncio.run(_set(resolve(target), name, suspend, wait, timeout_s))


async def _set(cluster: Cluster, name: str, suspend: bool, wait: bool, timeout_s: int | None) -> int:
    from muster.api.training_job import TrainingJob
    from muster.cli.jobs import describe
    from muster.cli.jobs.watch import get_job, job_states

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
        if describe.finished(job):
            raise CliError(
                f"'{name}' has ended already: {job.status.phase}",
                f"run it again: {prefix()} run, or remove it: {prefix()} delete {name}",
                ExitCode.CONFLICT,
            )
        if job.spec.suspend == suspend:
            note(f"'{name}' is stopped already" if suspend else f"'{name}' is not stopped: nothing to resume")
        else:
            await client.patch(TrainingJob, name, {"spec": {"suspend": suspend}}, namespace=cluster.namespace)
            if suspend:
                note(f"stopping '{name}'; continue it later: {prefix()} resume {name}")
            else:
                last = job.status.last_checkpoint
                begin = f"its checkpoint of step {last.step}" if last else "the beginning: it has no checkpoint"
                note(f"'{name}' continues from {begin}; watch it: {prefix()} status {name} --follow")
        if not wait:
            return ExitCode.DONE
        # The job may succeed or fail before it is suspended or runs.
        wanted = ("Suspended" if suspend else "Running", *describe.FINISHED)
        if suspend:
            limit_s: int | None = job.spec.stop_grace_seconds + _STOPPED_S
            late = (
                f"'{name}' has not stopped",
                f"the request to stop remains; check that a controller runs: {prefix()} status {name}",
            )
        else:  # a job may wait in the queue for days
            limit_s, late = (
                timeout_s,
                (f"'{name}' does not run", f"it keeps waiting; to see why: {prefix()} explain {name}"),
            )
        said = ""
        async with within(limit_s, *late):
            async for state in job_states(client, cluster.namespace, name):
                status = state.status
                if status.phase in wanted:
                    return ExitCode.DONE if suspend or status.phase == "Running" else describe.exit_status(state)
                if state.spec.suspend == suspend and status.observed_generation == state.metadata.generation:
                    standing = describe.standing(state)
                    if standing != said:
                        note(standing)
                    said = standing
    raise AssertionError("job_states never ends by itself")
