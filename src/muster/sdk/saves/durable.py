"""Flushes and removes files of checkpoints."""

from __future__ import annotations

import os
import shutil


def flush(path: str) -> None:
    """Fsync a file, or a folder with everything in it."""
    for parent, _, names in os.walk(path):
        for name in names:
            flush_one(os.path.join(parent, name))
        flush_one(parent)
    if not os.path.isdir(path):
        flush_one(path)


def flush_one(path: str) -> None:
    """Fsync one file or folder, not its contents. A symlink is skipped."""
    if os.path.islink(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: str) -> None:
    """Remove a file, a symlink, or a folder with everything in it, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
