"""A lock on a file, for folders that one process uses at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int:
    """Create the file if it is missing, lock it, and return its descriptor. Closing it, or the process's end, unlocks.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be created or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
