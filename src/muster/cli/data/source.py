"""The store that a command works on: a URL with options, or the data of a job."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobs.job_names import job_names
from muster.cli.names import not_empty, valid_object_name
from muster.cli.program import prefix
from muster.sdk.data.access import Access

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.sdk.data.store import Store


class Source(NamedTuple):
    """A place in an object store, and how to reach it.

    Attributes:
        url: without credentials.
        access: endpoint, region, and the folder of credentials.
        job: the job whose data this is; "" if the user named a URL.
    """

    url: str
    access: Access
    job: str = ""


class Given(NamedTuple):
    """The user's words: a URL or a job, and options that replace those of the job."""

    text: str
    endpoint: str
    region: str
    credentials: str

    @property
    def is_job(self) -> bool:
        """Returns whether the text is the name of a job: names have no slash."""
        return bool(self.text) and "/" not in self.text


def _text(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a text that is neither a URL or folder nor the name of a job; a click callback."""
    not_empty(context, parameter, value)
    if value and "/" not in value and not valid_object_name(value) and not context.resilient_parsing:
        raise BadInput(
            f"{value!r} is neither a URL nor the name of a job", "write s3://BUCKET/PREFIX, or ./FOLDER for a folder"
        )
    return value


def _folder(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a folder that does not exist; a click callback."""
    not_empty(context, parameter, value)
    if value and not os.path.isdir(value):
        raise BadInput(f"--credentials {value} is not a folder", "it holds files such as AWS_ACCESS_KEY_ID")
    return value


def source_options(required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the argument SOURCE and its options. The command receives them as one parameter, `given`."""
    absent: dict[str, Any] = {} if required else {"default": ""}  # a default of None would count as a value
    options = (
        click.argument(
            "source",
            metavar="SOURCE" if required else "[SOURCE]",
            required=required,
            callback=_text,
            shell_complete=job_names,
            **absent,
        ),
        click.option("--endpoint", default="", metavar="URL", callback=not_empty, help="Endpoint of the store."),
        click.option("--region", default="", metavar="NAME", callback=not_empty, help="Region of the bucket."),
        click.option(
            "--credentials",
            default="",
            metavar="DIR",
            callback=_folder,
            help="Folder with a file for each variable, such as AWS_ACCESS_KEY_ID (the environment).",
        ),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_source(*args: Any, source: str, endpoint: str, region: str, credentials: str, **rest: Any) -> Any:
            return function(*args, given=Given(source, endpoint, region, credentials), **rest)

        wrapped: Callable[..., Any] = with_source
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


async def source_of(given: Given, cluster: Cluster | None, client: Client | None) -> Source:
    """Return the store of a URL, or of a job's spec.data. A URL needs no cluster.

    Raises CliError if there is no such job, or if it has no data.
    """
    if not given.is_job:
        return Source(given.text, Access(given.endpoint, given.region, given.credentials))
    assert cluster is not None
    assert client is not None
    from muster.cli.jobs.watch import get_job

    job = await get_job(client, cluster.namespace, given.text)
    data = job.spec.data
    if data is None or not data.url:
        raise CliError(
            f"job '{job.name}' names no data in an object store (spec.data)",
            "name the URL instead, such as s3://BUCKET/PREFIX",
            ExitCode.NOT_FOUND,
        )
    access = Access(given.endpoint or data.endpoint, given.region or data.region, given.credentials)
    return Source(data.url, access, job.name)


@contextlib.contextmanager
def opened(source: Source, deadline_s: float) -> Iterator[Store]:
    """Open the store with the user's own credentials. Store errors become CliError.

    Raises:
        BadInput: the URL cannot be used.
        CliError: the store refuses, does not answer, or has no such bucket.
    """
    from muster.sdk.data import errors
    from muster.sdk.data.stores import open_store

    try:
        store = open_store(source.url, source.access, deadline_s=deadline_s)
        try:
            yield store
        finally:
            store.close()
    except errors.WrongStore as error:
        raise BadInput(str(error)) from None
    except errors.Forbidden as error:
        raise CliError(
            str(error),
            "this command uses your own credentials, not those of the job: set AWS_ACCESS_KEY_ID and the other "
            "variables, or name a folder with --credentials",
        ) from None
    except errors.NotFound as error:
        raise CliError(str(error), "", ExitCode.NOT_FOUND) from None
    except errors.Unavailable as error:
        raise CliError(str(error), "check --endpoint and the network", ExitCode.TIMED_OUT) from None
    except errors.ObstoreMissing:
        raise CliError(
            "the package obstore is not installed here", f"install it beside {prefix()}: pip install 'muster[data]'"
        ) from None
    except errors.StoreError as error:
        raise CliError(str(error)) from None


def credentials_to_send(access: Access, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's credentials for a cache, by variable: those of the folder, else those of the environment.

    They travel over the connection to the cache, which keeps them in memory until the connection ends. Raises BadInput.
    """
    from muster.sdk.data.credentials import NAMES, Credentials, read_credentials

    if access.credentials_dir:
        try:
            found = read_credentials(access.credentials_dir)
        except OSError as error:
            raise BadInput(f"--credentials {access.credentials_dir} cannot be read: {error.strerror}") from None
    else:
        found = Credentials(dict(environment))
    return {name: value for name in NAMES if (value := found.get(name))}
