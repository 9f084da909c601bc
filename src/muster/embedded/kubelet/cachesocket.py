"""The folder of the data cache's socket on this node. The first pod that mounts it starts the cache."""

from __future__ import annotations

import time
from pathlib import Path

SOCKET = "cache.sock"
START_S = 10.0
_POLL_S = 0.05


def cache_sockets(folder: Path, start_s: float = START_S) -> Path:
    """Return the folder. If it is missing, create it and wait until the cache has opened its socket.

    The cluster's daemon starts the cache of a node when it finds the folder. The wait blocks, and ends after `start_s`
    seconds without an error: a pod without the socket reads from the bucket.
    """
    try:
        folder.mkdir(mode=0o755, parents=True)
    except FileExistsError:
        return folder
    deadline = time.monotonic() + start_s
    while not (folder / SOCKET).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return folder
