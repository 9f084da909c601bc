"""Files that the supervisor shares with the ranks of an attempt on its node: the cache ticket, results of a restore."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any

from ..basics import ARCHIVE, write_file
from ..state.attempt import AttemptSpec

TICKET = "cache-ticket"
TICKET_VARIABLE = "MUSTER_CACHE_TICKET"
RESTORE = "restore"


def share(spec: AttemptSpec, folder: str) -> dict[str, str]:
    """Create the files of an attempt, and return the variables that name them. Raises OSError.

    `folder` is the supervisor's private folder. The ranks' results of a restore are in the pod's volume /muster if this
    user can write there, as a container's root file system may be read-only.
    """
    results = _results(folder)
    try:
        os.makedirs(results, mode=0o700, exist_ok=True)
    except OSError:  # the volume belongs to another user
        results = os.path.join(folder, RESTORE)
        os.makedirs(results, mode=0o700, exist_ok=True)
    shared = {"MUSTER_RESTORE_DIR": results}
    if spec.cache:
        ticket = os.path.join(folder, TICKET)
        write_file(ticket, json.dumps(spec.cache))
        shared[TICKET_VARIABLE] = ticket
    return shared


def replace_ticket(path: str, cache: dict[str, Any]) -> None:
    """Replace the ticket by a newer one at once: ranks may read the file at any moment. Raises OSError."""
    write_file(path + ".new", json.dumps(cache))
    os.replace(path + ".new", path)


def remove_shared(folder: str) -> None:
    """Remove the ticket and the results of ended attempts."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, TICKET))
    for results in {_results(folder), os.path.join(folder, RESTORE)}:
        shutil.rmtree(results, ignore_errors=True)


def _results(folder: str) -> str:
    return os.path.join(os.path.dirname(os.path.dirname(ARCHIVE)) if ARCHIVE else folder, RESTORE)
