"""Keeps the credentials of readers out of core dumps."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def forbid_core_dumps() -> None:
    """Let the kernel write no core dump of this process, and let only root read its memory. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
