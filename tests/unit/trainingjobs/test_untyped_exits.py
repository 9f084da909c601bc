"""Reports of supervisors of the version before, which said how a rank ended only in words."""

from __future__ import annotations

import pytest

from muster.trainingjobs.rendezvous.untyped_exits import how_of

WRITTEN_THEN = {
    "rank exited": "RankExited",
    "rank exited: out of memory, killed by the kernel": "OutOfMemory",
    "rank called MPI_Abort": "Aborted",
    "launcher exited": "LauncherExited",
    "ranks stopped by their launcher": "RanksStopped",
    "launcher connection lost": "ConnectionLost",
    "could not start: no mpiexec on PATH": "CouldNotStart",
}


@pytest.mark.parametrize("words", WRITTEN_THEN)
def test_words_of_an_earlier_supervisor_mean_what_the_name_says_now(words: str) -> None:
    assert how_of(words) == WRITTEN_THEN[words]


def test_words_that_no_supervisor_wrote_mean_nothing() -> None:
    assert how_of("") == how_of("a later supervisor says something else") == ""
