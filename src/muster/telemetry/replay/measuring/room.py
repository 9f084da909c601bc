"""How large the logs of a calibration may be on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

SERIES_MEMORY_BYTES: Final = 3_000
"""Peak of the server and of the encoder for a series, with a margin: 1,100 to 1,800 and 700 bytes were measured."""
SERIES_DISK_BYTES: Final = 400
"""A log and the copy that is replayed, with a margin."""
_SHARE: Final = 0.5
"""Of what is free; the rest is left to other programs."""


def series_that_fit(folder: Path) -> int:
    """Return the most series of a log for which this machine has free memory, and `folder` free disk."""
    disk = shutil.disk_usage(folder).free * _SHARE / SERIES_DISK_BYTES
    return int(min(disk, available_memory_bytes() * _SHARE / SERIES_MEMORY_BYTES))


def available_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that programs can still get (proc(5), MemAvailable), within the limit of this cgroup."""
    found = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):  # no cgroup, no limit, or "max"
        limit = int((cgroup / "memory.max").read_text())
        found = min(found, limit - int((cgroup / "memory.current").read_text()))
    return max(found, 0)
