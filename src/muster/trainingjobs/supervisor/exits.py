"""Exit codes and signals of processes that ended, and signals to process groups."""

from __future__ import annotations

import contextlib
import os


def outcome_of(status: int) -> tuple[int, int]:
    """Convert a wait status to (code, signal).

    The code is the exit code, or 128 + signal as in shells and Kubernetes.
    """
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, which may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
