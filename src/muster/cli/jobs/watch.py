"""Follows one TrainingJob, and reconnects after lost connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from muster.api.fixed_spec import effective
from muster.api.training_job import TrainingJob
from muster.cli.errors import CliError, ExitCode
from muster.kube.client import Client
from muster.kube.errors import Gone, NotFound, ServerTimeout, TooManyRequests, Unavailable

_AWAY_S_MAX = 120.0
_PAUSE_S = 0.5


async def job_states(client: Client, namespace: str, name: str) -> AsyncIterator[TrainingJob]:
    """Yield the present job, and the job after each change, without an end.

    If the API server does not answer, wait for it for up to two minutes.

    Raises:
        CliError: the job was deleted (exit status 4), or the server did not answer in time (3).
    """
    last_heard = time.monotonic()
    seen = ""
    while True:
        try:
            job = await client.get(TrainingJob, name, namespace)
            last_heard = time.monotonic()
            if job.metadata.resource_version != seen:
                yield job
            seen = job.metadata.resource_version
            async for event in client.watch(
                TrainingJob, namespace, field_selector=f"metadata.name={name}", resource_version=seen, bookmarks=False
            ):
                last_heard = time.monotonic()
                if event.type == "DELETED":
                    raise _gone(name)
                seen = event.object.metadata.resource_version
                yield event.object
        except NotFound:
            raise _gone(name) if seen else _missing(namespace, name) from None
        except (Gone, ServerTimeout, TooManyRequests, Unavailable) as error:
            if time.monotonic() - last_heard > _AWAY_S_MAX:
                raise CliError(f"the cluster cannot be reached: {error}", "", ExitCode.NO_CLUSTER) from None
        await asyncio.sleep(_PAUSE_S)


async def get_job(client: Client, namespace: str, name: str) -> TrainingJob:
    """Return the job. If it does not exist, the CliError names similar jobs."""
    try:
        return await client.get(TrainingJob, name, namespace)
    except NotFound as error:
        if "could not find the requested resource" in error.message:
            raise
        raise await _missing_with_names(client, namespace, name) from None


async def get_job_as_it_runs(client: Client, namespace: str, name: str) -> TrainingJob:
    """Return the job with the spec that the controller uses, without ignored edits."""
    return effective(await get_job(client, namespace, name)).job


def nearest(name: str, names: list[str]) -> list[str]:
    """Return at most three similar names: first those that add a suffix to this name, else the most similar ones."""
    import difflib

    begin = sorted(each for each in names if each.startswith(f"{name}-"))
    return begin[:3] or difflib.get_close_matches(name, names, n=1)


async def _missing_with_names(client: Client, namespace: str, name: str) -> CliError:
    near = nearest(name, [job.name for job in (await client.list(TrainingJob, namespace)).items])
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "muster list -A shows every job"
    return CliError(f"no training job '{name}' in namespace {namespace}", hint, ExitCode.NOT_FOUND)


def _missing(namespace: str, name: str) -> CliError:
    return CliError(
        f"no training job '{name}' in namespace {namespace}", "muster list -A shows every job", ExitCode.NOT_FOUND
    )


def _gone(name: str) -> CliError:
    return CliError(f"training job '{name}' was deleted", "", ExitCode.NOT_FOUND)
