"""A lock on the folder of the agent's state: two agents with one folder would change the same kernel twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster.kube.filelock import lock_file

FILE: Final = "agent.lock"


class StateInUse(OSError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the lock of this folder, which is created if it is missing.

    The kernel releases the lock when the process ends.

    Raises:
        StateInUse: a network agent, or a removal, uses the folder.
        OSError: the folder or the file cannot be created.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = lock_file(state / FILE)
    except BlockingIOError:
        raise StateInUse(f"another network agent on this node uses {state}") from None
    try:
        yield
    finally:
        os.close(descriptor)
