"""Creating a job with its code, so that a failure half-way leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from muster.api.training_job import TrainingJob
from muster.cli.errors import CliError, ExitCode
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.struct import to_dict


class NameTakenError(CliError):
    """There is a job of that name; exit status 5."""

    def __init__(self, job: TrainingJob) -> None:
        """Hold what to do about it."""
        super().__init__(
            f"there is a training job '{job.name}' in namespace {job.namespace} already",
            f"choose another --name, or remove it: muster delete {job.name}",
            ExitCode.CONFLICT,
        )


async def submit(client: Client, job: TrainingJob, code: dict[str, Any] | None) -> TrainingJob:
    """Create the ConfigMap of the code, then the job, then make the job its owner. Interrupted, it takes both back.

    Raises:
        NameTakenError: there is a job of that name.
        ApiError: the API server refused.
    """
    creating = asyncio.ensure_future(_create(client, job, code))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        created = await creating  # what the server did is known only when it has answered
        await client.delete(TrainingJob, created.name, namespace=created.namespace, uid=created.uid)
        raise


async def _create(client: Client, job: TrainingJob, code: dict[str, Any] | None) -> TrainingJob:
    if code is None:
        return await _create_job(client, job)
    await client.create(code, kind=ConfigMap)
    name = code["metadata"]["name"]
    try:
        created = await _create_job(client, job)
    except BaseException:
        with contextlib.suppress(ApiError):
            await client.delete(ConfigMap, name, namespace=job.namespace)
        raise
    patch = {"metadata": {"ownerReferences": [to_dict(created.owner_reference())]}}
    await client.patch(ConfigMap, name, patch, namespace=job.namespace)
    return created


async def _create_job(client: Client, job: TrainingJob) -> TrainingJob:
    try:
        return await client.create(job)
    except AlreadyExists:
        raise NameTakenError(job) from None


async def taken(client: Client, name: str, namespace: str) -> bool:
    """Returns whether a job of that name exists now."""
    try:
        await client.get(TrainingJob, name, namespace)
    except NotFound:
        return False
    return True
