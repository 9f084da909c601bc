"""Replaces a file so that a crash at any moment, also of the machine, leaves the old or the new content."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replace the content of a file. When this returns, the new content survives a power loss.

    One process writes a file at a time. A crash may leave `.NAME.new`, which the next call replaces.

    Raises:
        OSError: the file has its old content, or the new one if only the last step failed.
    """
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with memoryview(content) as left:
            written = 0
            while written < len(left):
                written += os.write(descriptor, left[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
