"""Recognizes the output of MPICH and of libraries derived from it when a rank aborts."""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence

ABORT = re.compile(r"\bAbort\((-?\d+)\) on node \d+ \(rank \d+ in comm \d+\)(: application called MPI_Abort)?")


class Abort(NamedTuple):
    """An abort as the lines of its rank show it.

    Attributes:
        code: the rank's exit code.
        before: the lines before the library's first line about the abort.
        said: the lines that explain the abort. If the program called MPI_Abort, these are the lines before the
            library's first one. Those of the teardown explain nothing: the launcher closes its connections then, and
            the library prints an error stack about each call that finds them closed.
    """

    code: int
    before: list[str]
    said: list[str]


def find_abort(lines: Sequence[str]) -> Abort | None:
    """Return the newest call of MPI_Abort in a rank's last lines, else the newest error that made the library abort."""
    found = [(number, match) for number, match in enumerate(map(ABORT.search, lines)) if match is not None]
    called = [each for each in found if each[1].group(2)]
    if not found:
        return None
    number, match = (called or found)[-1]
    before = list(lines[:number])
    said = (before or [lines[number]]) if called else list(lines)  # an error's own stack follows its first line
    return Abort(int(match.group(1)) & 255 or 1, before, said)
