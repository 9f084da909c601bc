"""The parts of a worker pod about object stores: Secrets as volumes, settings, and the socket of the node cache.

Credentials never become environment variables: those are visible in /proc, and in every crash report of a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from muster.api.training_job import CheckpointSpec, DataSpec, TrainingJobSpec

Json = dict[str, Any]

CREDENTIALS_FOLDER: Final = "/var/run/muster-store"
CACHE_FOLDER: Final = "/var/run/muster-cache"
CACHE_SOCKET: Final = f"{CACHE_FOLDER}/cache.sock"
CACHE_CLAIM: Final = "muster-cache"
"""The PersistentVolumeClaim of mode Claim, in each namespace of jobs."""
_CACHE: Final = "muster-cache"

CacheMode = Literal["hostPath", "claim"]


class CacheVolume(msgspec.Struct, frozen=True, kw_only=True):
    """How pods reach the node cache's socket.

    Attributes:
        mode: hostPath mounts a folder of the node, which Pod Security baseline and restricted forbid. claim mounts the
            PersistentVolumeClaim `muster-cache` of the pod's namespace.
        folder: the folder on the node, for hostPath.
    """

    mode: CacheMode
    folder: str = CACHE_FOLDER


def environment(spec: TrainingJobSpec, cache: CacheVolume | None) -> dict[str, str]:
    """The pod's variables about object stores, without credentials."""
    found: dict[str, str] = {}
    if spec.data is not None:
        found |= {"MUSTER_DATA_URL": spec.data.url, "MUSTER_DATA_BAD_SHARD": spec.data.bad_shards.lower()}
    for name, settings in _stores(spec):
        prefix = f"MUSTER_{name.upper()}"
        values = {
            f"{prefix}_ENDPOINT": settings.endpoint,
            f"{prefix}_REGION": settings.region,
            f"{prefix}_CREDENTIALS": f"{CREDENTIALS_FOLDER}/{name}" if settings.credentials is not None else "",
        }
        found |= {variable: value for variable, value in values.items() if value}
    if cache is not None:
        found["MUSTER_CACHE_SOCKET"] = CACHE_SOCKET
    return found


def mounts(spec: TrainingJobSpec, cache: CacheVolume | None) -> list[Json]:
    """The worker's mounts of these volumes."""
    found: list[Json] = [
        {"name": _volume(name), "mountPath": f"{CREDENTIALS_FOLDER}/{name}", "readOnly": True}
        for name, settings in _stores(spec)
        if settings.credentials is not None
    ]
    if cache is not None:
        found.append({"name": _CACHE, "mountPath": CACHE_FOLDER, "readOnly": True})
    return found


def volumes(spec: TrainingJobSpec, cache: CacheVolume | None) -> list[Json]:
    """The pod's volumes: one for each Secret, and the folder of the cache's socket."""
    found: list[Json] = [
        {"name": _volume(name), "secret": {"secretName": settings.credentials.secret_name}}
        for name, settings in _stores(spec)
        if settings.credentials is not None
    ]
    if cache is not None and cache.mode == "claim":
        found.append({"name": _CACHE, "persistentVolumeClaim": {"claimName": CACHE_CLAIM, "readOnly": True}})
    elif cache is not None:
        found.append({"name": _CACHE, "hostPath": {"path": cache.folder, "type": "DirectoryOrCreate"}})
    return found


def _stores(spec: TrainingJobSpec) -> Iterator[tuple[str, DataSpec | CheckpointSpec]]:
    if spec.data is not None:
        yield "data", spec.data
    if spec.checkpoint is not None:
        yield "checkpoint", spec.checkpoint


def _volume(name: str) -> str:
    return f"muster-store-{name}"
