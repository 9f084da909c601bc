"""Following one TrainingJob through the API server, however often the connection is lost."""

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
    """Yield the job now and after each change, for ever.

    An API server that is away is waited for up to two minutes at a time.

    Raises:
        CliError: the job was deleted (exit status 4), or the server stays away (3).
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
    """The job, or a CliError that says which names there are."""
    try:
        return await client.get(TrainingJob, name, namespace)
    except NotFound as error:
        if "could not find the requested resource" in error.message:
            raise
        raise await _missing_with_names(client, namespace, name) from None


async def get_job_as_it_runs(client: Client, namespace: str, name: str) -> TrainingJob:
    """The job with the spec that it runs by, without edits that are ignored: its slots and ranks are those."""
    return effective(await get_job(client, namespace, name)).job


def nearest(name: str, names: list[str]) -> list[str]:
    """The names that may have been meant, at most three: those that begin so with a suffix, else the most alike."""
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
