"""Checkpoints in a folder: reads their manifests and compares their files."""

from __future__ import annotations

import os

from muster.sdk import records
from muster.sdk.saves import files, manifest, parallel
from muster.sdk.saves.manifest import BadCheckpoint, Manifest, Shard


def read_manifest(path: str, sha256: str = "") -> Manifest | None:
    """The manifest of the checkpoint at a path; None if there is none and the controller recorded none.

    Checkpoints of earlier versions, and of programs that write them by themselves, have no manifest.

    Raises:
        BadCheckpoint: the checkpoint or its manifest is missing, damaged, or not the one that was confirmed.
    """
    if not os.path.exists(path):
        raise BadCheckpoint("Missing", f"there is no checkpoint at {path}")
    folder, name = os.path.split(os.path.abspath(path))
    where = records.manifest_path(folder, name)
    try:
        with open(where, "rb") as file:
            data = file.read(manifest.BYTES_MAX + 1)
    except FileNotFoundError:
        if sha256:
            raise BadCheckpoint("Missing", f"there is no manifest at {where}") from None
        return None
    except OSError as error:
        raise BadCheckpoint("Read", f"the manifest {where} cannot be read: {error.strerror}") from error
    if sha256 and manifest.digest(data) != sha256:
        raise BadCheckpoint("Manifest", f"the manifest {where} is not the one that the controller confirmed")
    return manifest.parse(data)


def file_of(path: str, shard: Shard) -> str:
    """The file of a shard of the checkpoint at a path."""
    return path if shard.key == manifest.SINGLE_FILE else os.path.join(path, *shard.key.split("/"))


def compare_size(path: str, shard: Shard) -> None:
    """Raise BadCheckpoint unless the shard's file exists and has the size in the manifest."""
    file = file_of(path, shard)
    try:
        size = os.path.getsize(file)
    except FileNotFoundError:
        raise BadCheckpoint("Missing", f"{file} is missing") from None
    except OSError as error:
        raise BadCheckpoint("Read", f"{file} cannot be read: {error.strerror}") from error
    if size != shard.size_bytes:
        raise BadCheckpoint("Size", f"{file} has {size} bytes instead of {shard.size_bytes}")


def verify(path: str, shard: Shard) -> None:
    """Read a shard's file and compare its checksum. Raises BadCheckpoint."""
    compare_size(path, shard)
    file = file_of(path, shard)
    try:
        _, sha256 = files.checksum(file)
    except OSError as error:
        raise BadCheckpoint("Read", f"{file} cannot be read: {error.strerror}") from error
    if sha256 != shard.sha256:
        raise BadCheckpoint("Checksum", f"{file} does not have the checksum in the manifest")


def check(folder: str, name: str, full: bool = False) -> None:
    """Compare the sizes of a checkpoint's files with its manifest; with `full`, also bytes. Raises BadCheckpoint."""
    path = os.path.join(folder, name)
    known = read_manifest(path)
    if known is not None:
        parallel.each(lambda shard: (verify if full else compare_size)(path, shard), known.shards)
