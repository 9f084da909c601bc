"""Child processes that never outlive us: each in a group of its own, killed by the kernel should we die first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Ties itself to its parent, then becomes the program. A program of its own, since running Python between fork and exec
# (preexec_fn) can deadlock a parent with threads, and Python 3.12 warns of it.
_TIED = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the parent died before its child started")
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""


class Child:
    """A running program with its output in a log file.

    The kernel kills it when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). So start it from the main
    thread or one that lives as long as the child should.
    """

    def __init__(self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        """Start `command` (a path and its arguments) with stdout and stderr appended to `log`.

        A command that cannot be run exits with 1, and the log says why.
        """
        self.name = Path(command[0]).name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also its process group's."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Returns its exit code (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, grace_s: float = 10.0) -> None:
        """End it with SIGTERM, and with SIGKILL to the whole group after `grace_s` seconds; 0 kills at once."""
        if grace_s > 0 and self.exit_code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
