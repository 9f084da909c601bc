"""The parts of a worker pod about object stores: Secrets as volumes, settings, and the socket of the node cache.

Credentials never become environment variables: those are visible in /proc, and in every crash report of a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from muster.api.names import CACHE_DIRECTORY
from muster.api.store_url import is_store
from muster.api.training_job import CheckpointSpec, DataSpec, TrainingJobSpec

Json = dict[str, Any]

CREDENTIALS_FOLDER: Final = "/var/run/muster-store"
CACHE_SOCKET: Final = f"{CACHE_DIRECTORY}/cache.sock"
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
        namespaces: for claim, the namespaces that have the claim. A pod whose claim is missing would never start.
    """

    mode: CacheMode
    folder: str = CACHE_DIRECTORY
    namespaces: tuple[str, ...] = ()

    def reaches(self, namespace: str, allows_host_paths: bool) -> bool:
        """Returns whether pods of a namespace can have this volume."""
        return allows_host_paths if self.mode == "hostPath" else namespace in self.namespaces

    def used_by(self, spec: TrainingJobSpec) -> bool:
        """Returns whether a job reads or writes an object store. Others do not need the cache of their node."""
        return any(is_store(url) for url in _urls(spec))


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
        }
        if settings.credentials is not None:
            values[f"{prefix}_CREDENTIALS"] = f"{CREDENTIALS_FOLDER}/{name}"
            values[f"{prefix}_SECRET"] = settings.credentials.secret_name  # for messages
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
        found.append({"name": _CACHE, "mountPath": CACHE_DIRECTORY, "readOnly": True})
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


def _urls(spec: TrainingJobSpec) -> Iterator[str]:
    if spec.data is not None:
        yield spec.data.url
    if spec.checkpoint is not None:
        yield spec.checkpoint.path


def secret_names(spec: TrainingJobSpec) -> list[str]:
    """The Secrets with the credentials of the job's stores."""
    found = (settings.credentials for _, settings in _stores(spec))
    return sorted({each.secret_name for each in found if each is not None})


def _stores(spec: TrainingJobSpec) -> Iterator[tuple[str, DataSpec | CheckpointSpec]]:
    if spec.data is not None:
        yield "data", spec.data
    if spec.checkpoint is not None:
        yield "checkpoint", spec.checkpoint


def _volume(name: str) -> str:
    return f"muster-store-{name}"
