"""Reads the reports of supervisors that say how a rank ended only in words. A running job keeps its supervisor."""

from __future__ import annotations

from typing import Final

_FIRST_WORDS: Final = {
    "rank exited: out of memory": "OutOfMemory",
    "rank exited": "RankExited",
    "rank called MPI_Abort": "Aborted",
    "launcher exited": "LauncherExited",
    "ranks stopped by their launcher": "RanksStopped",
    "launcher connection lost": "ConnectionLost",
    "could not start:": "CouldNotStart",
}


def how_of(reason: str) -> str:
    """Return what the words of a supervisor of an earlier version mean; "" if they mean nothing to us."""
    return next((how for words, how in _FIRST_WORDS.items() if reason.startswith(words)), "")
