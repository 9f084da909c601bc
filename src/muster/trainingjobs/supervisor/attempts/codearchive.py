"""Fetches the job's code archive, checks its digest, and unpacks it below the working directory."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import shutil
import stat
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request

from ..basics import UsageError, log
from ..settings import Settings

_ATTEMPTS = 6
"""Of one download."""


def install_code(settings: Settings) -> None:
    """Install the job's code below the working directory, once per archive. Raises UsageError if that fails."""
    os.makedirs(settings.workdir, exist_ok=True)
    if not (settings.code_archive or settings.code_url):
        return
    path = settings.code_archive or download(settings.code_url, settings.code_sha256)
    try:
        digest = file_sha256(path)
        mark = os.path.join(settings.workdir, ".muster-code-" + digest[:16])
        if not os.path.exists(mark):
            unpack(path, settings.workdir)
            with open(mark, "w", encoding="ascii") as file:
                file.write(digest + "\n")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"cannot unpack the code archive {path}: {error}") from error
    finally:
        if not settings.code_archive:
            os.unlink(path)


def download(url: str, sha256: str) -> str:
    """Fetch the code archive into a temporary file and check its digest; retries, then raises UsageError."""
    shown = url.partition("?")[0]  # leave out the query: its signature would let any reader of the log fetch the code
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"MUSTER_CODE_URL must be http(s), not {shown!r}")
    for attempt in range(1, _ATTEMPTS + 1):
        handle, path = tempfile.mkstemp(prefix="muster-code-")
        try:
            with os.fdopen(handle, "wb") as file, urllib.request.urlopen(url, timeout=30) as response:
                shutil.copyfileobj(response, file)
        except (OSError, http.client.HTTPException) as error:
            os.unlink(path)
            if attempt == _ATTEMPTS:
                raise UsageError(f"cannot fetch the code from {shown}: {error}") from error
            log(f"fetching the code from {shown} failed ({error}), trying again")
            time.sleep(min(30.0, 2.0**attempt) * random.uniform(0.5, 1.0))
            continue
        if file_sha256(path) == sha256:
            return path
        os.unlink(path)
        raise UsageError(f"the code at {shown} does not have the SHA-256 that the job names ({sha256})")
    raise AssertionError


def file_sha256(path: str) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def unpack(path: str, folder: str) -> None:
    """Extract a tar.gz below `folder`.

    If a member is a link or lies outside, raises UsageError before writing anything.
    """
    root = os.path.realpath(folder)

    def inside(name: str) -> bool:
        return os.path.realpath(os.path.join(root, name)).startswith(root + os.sep) or name in ("", ".")

    with tarfile.open(path, "r:gz") as archive:
        members = archive.getmembers()
        for member in members:
            target = os.path.normpath(member.name)
            if os.path.isabs(target) or target.split(os.sep)[0] == ".." or not (member.isreg() or member.isdir()):
                raise UsageError(f"the code archive may only hold plain files and folders inside it: {member.name!r}")
        for member in members:
            if not inside(member.name):  # through an existing link
                raise UsageError(f"the code archive would write outside the working directory: {member.name!r}")
            target = os.path.join(root, member.name)
            if member.isdir():
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)
            os.chmod(target, 0o755 if member.mode & stat.S_IXUSR else 0o644)
