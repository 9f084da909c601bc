"""Runs the programs that change the kernel's firewall."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from muster.network.traffic.backend import BackendError

_TIMEOUT_S: Final = 30.0
_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"
_ERROR_LENGTH_MAX: Final = 500


def run_program(argv: Sequence[str], text: str = "") -> str:
    """Run a program with text as its input, in the network namespace of this thread; return its output.

    Raises:
        BackendError: it is missing, failed or took more than 30 s.
    """
    environment = {**os.environ, "PATH": f"{_PATH}:{os.environ.get('PATH', '/usr/bin:/bin')}", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
    except FileNotFoundError:
        raise BackendError(f"{argv[0]} is missing: add it to the image, or choose another backend") from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{' '.join(argv)} took more than {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        error = (done.stderr.strip() or done.stdout.strip())[:_ERROR_LENGTH_MAX]
        raise BackendError(f"{' '.join(argv)} failed with code {done.returncode}: {error}")
    return done.stdout
