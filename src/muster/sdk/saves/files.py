"""Local files of a checkpoint: listing, checksums, and the folder for copies."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from typing import BinaryIO, NamedTuple

from muster.sdk import place
from muster.sdk.errors import CheckpointNotSaved

FULL = (errno.ENOSPC, errno.EDQUOT)
_CHUNK_BYTES = 1 << 20


class LocalFile(NamedTuple):
    """A file of a checkpoint: its name relative to the checkpoint ("" for the checkpoint itself), and its path."""

    name: str
    path: str


def inside(path: str, strict: bool = True) -> list[LocalFile]:
    """The files at a path, sorted by name.

    Links to folders, broken links, sockets and the like cannot be uploaded. Raises CheckpointNotSaved for them, unless
    `strict` is False: then they are left out.
    """
    if not os.path.isdir(path):
        return [LocalFile("", path)] if _regular(path, strict) else []
    found = []
    for folder, folders, names in os.walk(path):
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]:
            full = os.path.join(folder, name)
            if _regular(full, strict):
                found.append(LocalFile(os.path.relpath(full, path).replace(os.sep, "/"), full))
    return sorted(found)


def _regular(path: str, strict: bool) -> bool:
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        if strict:
            raise CheckpointNotSaved(f"write() left nothing readable at {path}: {error.strerror}") from error
        return False
    if strict and not _is_text(path):
        raise CheckpointNotSaved(f"write() made {path!r}, whose name is not UTF-8: rename it")
    if strict and not regular:
        raise CheckpointNotSaved(f"write() made {path}, which is not a file or an ordinary folder")
    return regular


def _is_text(path: str) -> bool:
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def checksum(path: str) -> tuple[int, str]:
    """The size in bytes and the SHA-256 of a file. Raises OSError."""
    with open(path, "rb") as file:
        return checksum_of(file)


def checksum_of(file: BinaryIO) -> tuple[int, str]:
    """The size in bytes and the SHA-256 of an open file."""
    size, sha256 = 0, hashlib.sha256()
    while True:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            return size, sha256.hexdigest()
        size += len(chunk)
        sha256.update(chunk)


def save_folder() -> str:
    """The folder on this node for copies that are uploaded: MUSTER_SAVE_DIR, the pod's volume, or the usual one."""
    asked = os.environ.get("MUSTER_SAVE_DIR", "")
    if asked:
        os.makedirs(asked, exist_ok=True)
        return asked
    restore = os.environ.get("MUSTER_RESTORE_DIR", "")
    volume = os.path.dirname(restore) if restore else "/muster"
    return volume if os.access(volume, os.W_OK) else tempfile.gettempdir()


def new_copy() -> str:
    """A path in a new folder of this node, for one checkpoint."""
    return os.path.join(tempfile.mkdtemp(prefix=f"{_prefix()}{place.attempt()}-", dir=save_folder()), "checkpoint")


def remove_old_copies() -> None:
    """Remove what killed processes of this rank left in earlier attempts. Without Muster nothing is removed."""
    if not place.attempt():
        return
    prefix, folder = _prefix(), save_folder()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            attempt = name[len(prefix) :].partition("-")[0] if name.startswith(prefix) else ""
            if attempt.isdigit() and int(attempt) < place.attempt():
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _prefix() -> str:
    return "muster-save-{}-rank-{}-attempt-".format(os.environ.get("MUSTER_JOB_UID", ""), place.rank())


def remove_copy(path: str) -> None:
    """Remove a path of `new_copy` and its folder."""
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def no_space(error: OSError, path: str) -> CheckpointNotSaved | None:
    """The error for a full disk, with the fix; None if it is another error."""
    if error.errno not in FULL:
        return None
    return CheckpointNotSaved(
        f"the copy of the checkpoint on this node does not fit into {os.path.dirname(path)}: free space there, or set "
        "MUSTER_SAVE_DIR to a folder with more space",
        temporary=True,
    )
