"""`run`: the main program of a worker's container."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import traceback
from typing import NoReturn

from .attempts.codearchive import install_code
from .basics import PR_SET_CHILD_SUBREAPER, UsageError, prctl
from .loop import Supervisor
from .settings import Settings


def command_run(arguments: list[str]) -> int:
    """Run the supervisor until it exits."""
    if arguments:
        raise UsageError("usage: supervisor.py run (everything comes from the environment)")

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)  # process 1 has no default action for signals
    signal.signal(signal.SIGINT, leave)
    settings = Settings(os.environ)
    install_code(settings)
    threading.excepthook = thread_failed
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix="muster-")  # below the pod's TMPDIR: leftovers are deleted with the pod
    try:
        supervisor = Supervisor(settings, folder)
        signal.signal(signal.SIGCHLD, lambda number, frame: supervisor.wake())
        signal.signal(signal.SIGTERM, lambda number, frame: supervisor.terminate())
        signal.signal(signal.SIGINT, lambda number, frame: supervisor.terminate())
        return supervisor.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def thread_failed(details: threading.ExceptHookArgs) -> None:
    """Exit at once: a failed pod is better than a supervisor with a dead thread."""
    traceback.print_exception(details.exc_type, details.exc_value, details.exc_traceback)
    os._exit(70)
