"""Options of `muster run` about object stores, and a check of their Secrets before the job is created."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.api.store_url import file_url, is_store, is_url, missing_keys
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.output import note
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.core import Secret

if TYPE_CHECKING:
    from muster.kube.client import Client

_SECTIONS = ("data", "checkpoint")
_LOCATION = {"data": "url", "checkpoint": "path"}


def data_url(text: str, *, local: bool) -> str:
    """Convert `--data` to spec.data.url.

    Args:
        text: a URL or a folder.
        local: whether the nodes see this machine's files.

    Raises:
        BadInput: the folder does not exist, or is relative although the nodes do not see this machine.
    """
    if is_url(text):
        return text
    if local:
        if not Path(text).is_dir():
            raise BadInput(f"--data {text} is not a folder", "name a folder, or a URL such as s3://BUCKET/PATH")
        return file_url(str(Path(text).absolute()))
    if not text.startswith("/"):
        raise BadInput(
            f"--data {text}: the nodes of this cluster do not see this folder",
            "name a URL such as s3://BUCKET/PATH, or an absolute folder that the nodes mount",
        )
    return file_url(text)


def data_location(spec: dict[str, Any]) -> str:
    """The URL of a job's data; "" without data."""
    return str((spec.get("data") or {}).get("url", ""))


def set_stores(spec: dict[str, Any], flags: dict[str, Any]) -> None:
    """Apply the options about the store to the job's data and checkpoints that are in object stores.

    Raises:
        BadInput: such an option is given, and neither the data nor the checkpoints are in an object store.
    """
    given = {
        "endpoint": flags["store_endpoint"],
        "region": flags["store_region"],
        "credentials": {"secretName": flags["store_secret"]} if flags["store_secret"] else None,
    }
    given = {name: value for name, value in given.items() if value}
    if flags["bad_shards"]:
        if not spec.get("data"):
            raise BadInput("--bad-shards goes with --data", "name the data, such as --data s3://BUCKET/PATH")
        spec["data"]["badShards"] = flags["bad_shards"].capitalize()
    stores = [name for name in _SECTIONS if is_store((spec.get(name) or {}).get(_LOCATION[name], ""))]
    if given and not stores:
        option = next(each for each in ("store_endpoint", "store_region", "store_secret") if flags[each])
        raise BadInput(
            f"--{option.replace('_', '-')} goes with data or checkpoints in an object store",
            "name one, such as --data s3://BUCKET/PATH or --checkpoint s3://BUCKET/PATH",
        )
    kinds = {spec[name][_LOCATION[name]].partition("://")[0] for name in stores}
    if len(kinds) > 1 and "endpoint" in given:
        raise BadInput(
            "--store-endpoint cannot serve the data and the checkpoints: they are in stores of different kinds",
            "give each its endpoint in a manifest (spec.data, spec.checkpoint), and run it with --file",
        )
    for name in stores:
        spec[name] |= deepcopy(given)


async def check_secrets(client: Client, job: dict[str, Any]) -> None:
    """Check that the Secrets of the job's stores exist and have the keys that the stores need.

    If the user may not read Secrets, the check is left to the nodes: the pods wait until the Secret exists.

    Raises:
        CliError: a Secret does not exist.
        BadInput: a Secret lacks a key.
    """
    namespace = job["metadata"]["namespace"]
    for section in _SECTIONS:
        settings = job["spec"].get(section) or {}
        name = (settings.get("credentials") or {}).get("secretName")
        if not name:
            continue
        try:
            secret = await client.get(Secret, name, namespace)
        except Forbidden:
            note(f"you may not read Secret {name}, so it was not checked; without it the job's pods cannot start")
            continue
        except NotFound:
            raise CliError(
                f"there is no Secret {name} in namespace {namespace} (spec.{section}.credentials)",
                "create it first: kubectl create secret generic NAME --from-env-file=FILE",
                ExitCode.NOT_FOUND,
            ) from None
        missing = missing_keys(settings[_LOCATION[section]], secret.data)
        if missing:
            raise BadInput(
                f"Secret {name} does not hold the credentials of {settings[_LOCATION[section]]}",
                f"it needs the keys {missing}",
            )
