"""Does a piece of work once for all ranks of a node: the first rank does it, and others wait for the outcome.

Ranks of a node share a folder. If the rank that does the work dies, the whole attempt restarts, and the next attempt
has another folder. So nothing here is ever taken over.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any, Callable

from muster.sdk.saves.manifest import BadCheckpoint

_PAUSE_S = 0.05
_SLOWEST_BYTES_PER_S = 1 << 20


class Once:
    """Work that ranks of this node share.

    Args:
        folder: the folder that they share.
        deadline_s: how long to wait for another rank, and a second more for each MiB of its work.
    """

    def __init__(self, folder: str, deadline_s: float) -> None:
        self._folder, self._deadline_s = folder, deadline_s
        os.makedirs(folder, exist_ok=True)

    def run(self, key: str, size_bytes: int, work: Callable[[], object]) -> None:
        """Do the work, unless another rank of this node does it or has done it.

        Args:
            key: names the work.
            size_bytes: number of bytes that it moves.
            work: does it.

        Raises:
            BadCheckpoint: the work raised it, here or in another rank.
            TimeoutError: the other rank did not end by the deadline.
        """
        base = os.path.join(self._folder, hashlib.sha256(os.fsencode(key)).hexdigest()[:32])
        outcome = base + ".done"
        try:
            os.close(os.open(base + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            deadline_s = self._deadline_s + size_bytes / _SLOWEST_BYTES_PER_S
            said = wait_for(outcome, deadline_s, f"another rank of this node did not finish {key} in time")
            if said:
                raise BadCheckpoint(said["reason"], said["message"]) from None
            return
        try:
            work()
        except BadCheckpoint as error:
            write_json(outcome, {"reason": error.reason, "message": str(error)})
            raise
        except BaseException as error:
            write_json(outcome, {"reason": "Read", "message": f"{key}: {error}"})
            raise
        write_json(outcome, {})


def write_json(path: str, said: dict[str, Any]) -> None:
    """Write a small file in one step."""
    partial = f"{path}.{os.getpid()}.new"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(said, file)
    os.replace(partial, path)


def wait_for(path: str, deadline_s: float, late: str, alive: str = "") -> dict[str, Any]:
    """Wait for a file of `write_json` and return what it holds. Raises TimeoutError with the message `late`.

    Args:
        path: the file.
        deadline_s: how long to wait, counted again whenever the file `alive` changes.
        late: the message of the error.
        alive: a file that the other process replaces from time to time; "" for none.
    """
    deadline, seen = time.monotonic() + deadline_s, 0
    while True:
        changed = _changed(alive) if alive else 0
        if changed != seen:
            deadline, seen = time.monotonic() + deadline_s, changed
        try:
            with open(path, encoding="utf-8") as file:
                said: dict[str, Any] = json.load(file)
                return said
        except FileNotFoundError:
            pass
        if time.monotonic() >= deadline:
            raise TimeoutError(late)
        time.sleep(_PAUSE_S)


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
