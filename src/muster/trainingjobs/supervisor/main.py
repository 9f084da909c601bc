"""Runs the sub-commands; each imports only the modules that it needs."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .basics import UsageError, log


def main(arguments: list[str]) -> int:
    """Run a sub-command; returns the exit code."""
    name, rest = (arguments[0] if arguments else ""), arguments[1:]
    try:
        if name == "rank":
            from .ranks.rank import command_rank as command
        elif name == "rsh":
            from .remoteshell.rsh import command_rsh as command
        elif name == "run":
            from .run import command_run as command
        elif name == "dial":
            from .remoteshell.dial import command_dial as command
        elif name == "session":
            from .remoteshell.session import command_session as command
        elif name == "stacks":
            from .ranks.stacks import command_stacks as command
        elif name == "install":
            from .install import command_install as command
        else:
            raise UsageError("usage: supervisor.py install DIR | run | rank -- COMMAND... | rsh HOST COMMAND...")
        return command(rest)
    except (UsageError, OSError) as error:
        log(str(error))
        return 2 if isinstance(error, UsageError) else 1


def run_and_exit() -> NoReturn:
    """Run a sub-command, and exit the process."""
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads that wait in the kernel must not delay the exit
