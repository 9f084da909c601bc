"""Exit codes and signals of processes that ended, and signals to process groups."""

from __future__ import annotations

import contextlib
import os


def outcome_of(status: int) -> tuple[int, int]:
    """(code, signal) of a wait status: code is the exit code, or 128 + signal as shells and Kubernetes say it."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def signal_group(pid: int, number: int) -> None:
    """Signal a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
