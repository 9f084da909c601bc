"""Explains jobs that no controller has taken: for how long, why, and what to do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from muster.api.names import ANNOTATION_SHADOW, CONTROLLER_LEASE, SYSTEM_NAMESPACE
from muster.cli.output import duration
from muster.cli.target import if_allowed

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.kube.client import Client
    from muster.kube.objects.coordination import Lease

PATIENCE_S: Final = 30.0
"""A controller takes a job within a second; a new leader may need one lease duration first."""
_SILENT_S: Final = 30.0


def untaken_s(job: TrainingJob, now: datetime) -> float:
    """Seconds for which no controller has written the job's status; 0 if one has, or if it is too early to say."""
    created, status = job.metadata.creation_timestamp, job.status
    taken = status.observed_generation or status.attempt or status.conditions or status.phase != "Pending"
    if created is None or taken:
        return 0.0
    waited_s = (now - created).total_seconds()
    return waited_s if waited_s >= PATIENCE_S else 0.0


async def warning(client: Client, job: TrainingJob, now: datetime) -> str:
    """Returns a message about a job that no controller has taken; "" for any other job."""
    waited_s = untaken_s(job, now)
    return f"no controller has taken this job for {duration(waited_s)}: {await reason(client, now)}" if waited_s else ""


async def reason(client: Client, now: datetime) -> str:
    """Return why no controller takes jobs, and what to do."""
    from muster.kube.errors import Forbidden, NotFound
    from muster.kube.objects.coordination import Lease

    try:
        lease = await client.get(Lease, CONTROLLER_LEASE, SYSTEM_NAMESPACE)
    except NotFound:
        return _why(None, now)
    except Forbidden:
        return "ask the operator of the cluster whether a Muster controller runs, and whether it is in shadow mode"
    return _why(lease, now)


async def wait_until_late(client: Client, namespace: str, name: str) -> str:
    """Wait until a controller should have taken a new job. Returns a warning; "" if one took it."""
    from muster.api.training_job import TrainingJob

    await asyncio.sleep(PATIENCE_S + 1.0)
    job = await if_allowed(client.get(TrainingJob, name, namespace))
    return await warning(client, job, datetime.now(UTC)) if job is not None else ""


def _why(lease: Lease | None, now: datetime) -> str:
    renewed = lease.spec.renew_time if lease is not None else None
    if lease is None or renewed is None:
        return (
            f"no controller has ever led here (there is no Lease {CONTROLLER_LEASE} in namespace {SYSTEM_NAMESPACE}). "
            "Install Muster (docs/install.md); on this machine: muster up"
        )
    silent_s = (now - renewed).total_seconds()
    if silent_s > _SILENT_S:
        return (
            f"none has renewed its lease for {duration(silent_s)}. Start it again: "
            f"kubectl -n {SYSTEM_NAMESPACE} get pods shows it; on this machine: muster up"
        )
    if lease.metadata.annotations.get(ANNOTATION_SHADOW):
        return (
            "the only one runs in shadow mode, which plans and writes nothing. Leave shadow mode: "
            "helm upgrade with --set shadow=false (docs/install.md)"
        )
    return f"{lease.spec.holder_identity} leads and has not written about it. Its log says why"
