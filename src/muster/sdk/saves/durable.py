"""Flushes and removes files of checkpoints."""

from __future__ import annotations

import os
import shutil
import stat


def flush(path: str) -> None:
    """Fsync a file, or a folder with everything in it."""
    for parent, _, names in os.walk(path):
        for name in names:
            flush_one(os.path.join(parent, name))
        flush_one(parent)
    if not os.path.isdir(path):
        flush_one(path)


def flush_one(path: str) -> None:
    """Fsync one file or folder, not its contents. Others are skipped: opening a named pipe would wait for a writer."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
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
