"""Resident memory of a process now, and its peak since a reset (proc(5): clear_refs, statm, status)."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(pid: int) -> int:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def reset_peak(pid: int) -> None:
    """Let the peak of resident memory begin at its value of now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
