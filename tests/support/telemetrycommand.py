"""`muster telemetry` in the process of the test: a process of its own would take half a CPU second for its imports."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

from muster.cli.main import run


class Ended(NamedTuple):
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


def telemetry(*arguments: str | Path) -> Ended:
    """Run `muster telemetry` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["telemetry", *map(str, arguments)])
    return Ended(code, out.getvalue(), err.getvalue())
