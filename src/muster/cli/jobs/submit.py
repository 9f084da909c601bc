"""Creates a job with its code. After a failure half-way, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from msgspec.structs import replace

from muster.api.names import ANNOTATION_SUBMITTER
from muster.api.training_job import TrainingJob
from muster.cli.caller import caller_name
from muster.cli.errors import CliError, ExitCode
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.struct import to_dict


class NameTakenError(CliError):
    """A job of that name exists; exit status 5."""

    def __init__(self, job: TrainingJob) -> None:
        """Store the message and the hint."""
        super().__init__(
            f"there is a training job '{job.name}' in namespace {job.namespace} already",
            f"choose another --name, or remove it: muster delete {job.name}",
            ExitCode.CONFLICT,
        )


async def submit(client: Client, job: TrainingJob, code: dict[str, Any] | None) -> TrainingJob:
    """Create the ConfigMap of the code, then the job, then make the job the ConfigMap's owner. On Ctrl-C, delete both.

    Raises:
        NameTakenError: a job of that name exists.
        ApiError: the API server refused.
    """
    creating = asyncio.ensure_future(_create(client, job, code))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        created = await creating  # wait for the answer: only then is it known what the server did
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
    with contextlib.suppress(ApiError):  # without the annotation, the job counts for its namespace
        job = _submitted_by(job, await caller_name(client))
    try:
        return await client.create(job)
    except AlreadyExists:
        raise NameTakenError(job) from None


def _submitted_by(job: TrainingJob, user: str) -> TrainingJob:
    annotations = {**job.metadata.annotations, ANNOTATION_SUBMITTER: user}
    return replace(job, metadata=replace(job.metadata, annotations=annotations))


async def taken(client: Client, name: str, namespace: str) -> bool:
    """Returns whether a job of that name exists now."""
    try:
        await client.get(TrainingJob, name, namespace)
    except NotFound:
        return False
    return True
