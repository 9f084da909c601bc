"""The Go programs below tools/ of a source checkout, built once into a cache outside of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_BUILD_SCRIPT = Path(__file__).parents[3] / "tools" / "build-go"
_BUILD_TIMEOUT_S = 45 * 60


class NotBuiltError(Exception):
    """A program is not there and cannot be built; the message says what to do."""


def find_built(name: str, *, build: bool = True) -> Path:
    """Return the folder that holds the program tools/`name`.

    Args:
        name: controlplane, coscheduling, helm, informers, jobset, prometheus or versitygw.
        build: build it now where it is missing and Go is installed, which takes minutes; progress goes to stderr.

    Raises:
        NotBuiltError: it is not there and was not built.
    """
    if not _BUILD_SCRIPT.is_file():
        raise NotBuiltError(f"no {name}: this is not a source checkout; run from one")
    where = subprocess.run([_BUILD_SCRIPT, "--where", name], capture_output=True, text=True, timeout=30, check=False)
    if where.returncode == 0:
        return Path(where.stdout.strip())
    if not build or shutil.which("go") is None:
        raise NotBuiltError(f"no {name} is built: install Go 1.26 and run 'make {name}'")
    built = subprocess.run(
        [_BUILD_SCRIPT, name], stdout=subprocess.PIPE, text=True, timeout=_BUILD_TIMEOUT_S, check=False
    )
    if built.returncode != 0:
        raise NotBuiltError(f"'make {name}' failed; its messages are above")
    return Path(built.stdout.strip())
