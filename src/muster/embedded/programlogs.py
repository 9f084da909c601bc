"""Limits the size of the logs of a cluster's own programs."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

MAX_BYTES = 10 << 20
PERIOD_S = 1.0


async def keep_bounded(folder: Path) -> None:
    """Limit the size of every `*.log` in a folder, once a second, for ever."""
    while True:
        await asyncio.sleep(PERIOD_S)
        await asyncio.to_thread(bound_logs, folder)


def bound_logs(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Move the end of each log that is larger than `max_bytes` to `NAME.log.1`, and empty the log.

    The programs append to files they hold open (O_APPEND), so the file itself must stay. What is written between the
    copy and the emptying is lost, at most once per `max_bytes`.
    """
    for path in folder.glob("*.log"):
        try:
            if path.stat().st_size > max_bytes:
                _empty(path, max_bytes)
        except OSError as error:  # a full disk must not end the cluster: the log is emptied even without a copy
            print(f"cannot bound {path.name}: {error}", flush=True)


def _empty(path: Path, keep_bytes: int) -> None:
    try:
        with path.open("rb") as source, path.with_name(f"{path.name}.1").open("wb") as target:
            source.seek(-keep_bytes, os.SEEK_END)
            shutil.copyfileobj(source, target)
    finally:
        os.truncate(path, 0)
