"""Reports of supervisors of the version before, which said how a rank ended only in words."""

from __future__ import annotations

import pytest

from muster.trainingjobs.rendezvous.untyped_exits import how_of
from muster.trainingjobs.supervisor.state.attempt import REASONS


@pytest.mark.parametrize("how", REASONS)
def test_words_of_an_earlier_supervisor_mean_what_the_name_says_now(how: str) -> None:
    assert how_of(f"{REASONS[how]}: no mpiexec on PATH" if how == "CouldNotStart" else REASONS[how]) == how


def test_words_that_no_supervisor_wrote_mean_nothing() -> None:
    assert how_of("") == how_of("a later supervisor says something else") == ""
