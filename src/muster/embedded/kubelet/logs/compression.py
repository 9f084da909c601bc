"""Compresses rotated container logs in the background, as the kubelet does (kubernetes, pkg/kubelet/logs).

The newest rotated file of a log stays as it is: a reader that follows the log may still be in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import os
import shutil
from pathlib import Path

from muster.embedded.kubelet.containers.shim import rotated_logs

PERIOD_S = 10.0  # containerLogMonitorInterval's default
_LEVEL = 1
log = logging.getLogger(__name__)


async def keep_compressed(pods: Path) -> None:
    """Compress rotated logs of all pods every 10 seconds, for ever."""
    while True:
        await asyncio.sleep(PERIOD_S)
        try:
            await asyncio.to_thread(compress_rotated, pods)
        except OSError as error:  # the disk may be full; the log's writer removes old files anyway
            log.warning("rotated logs were not compressed: %s", error)


def compress_rotated(pods: Path) -> None:
    """Compress every rotated log but the newest one of each log. Raises OSError if the disk takes no more."""
    for left in pods.glob("*/logs/*/*.tmp"):  # left over from a killed kubelet
        left.unlink(missing_ok=True)
    for current in pods.glob("*/logs/*/*.log"):
        for path in rotated_logs(str(current))[:-1]:
            if not path.endswith(".gz"):
                with contextlib.suppress(FileNotFoundError):  # its writer removed it, or the pod is gone
                    _compress(path)


def _compress(path: str) -> None:
    temporary = f"{path}.tmp"
    try:
        with open(path, "rb") as source, gzip.open(temporary, "wb", compresslevel=_LEVEL) as target:
            shutil.copyfileobj(source, target)
        os.rename(temporary, f"{path}.gz")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    try:
        os.unlink(path)
    except FileNotFoundError:  # the log's writer has removed it in the meantime
        os.unlink(f"{path}.gz")
