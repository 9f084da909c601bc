"""What `muster status` says of a job that borrows."""

from __future__ import annotations

import pytest

from muster.cli.jobs.borrowed import borrowed_text
from muster.cli.jobs.status import print_status
from tests.unit.cli.test_status import NOW, job


@pytest.mark.parametrize(
    ("lent", "text"),
    [
        (None, "nodes of other teams, until they need them"),
        ({}, "nothing now; it may use nodes of other teams until they need them"),
        ({"blue": 1}, "1 node of team blue; all of the job stops when these are needed there"),
        (
            {"blue": 1, "red": 2},
            "1 node of team blue, 2 nodes of team red; all of the job stops when these are needed there",
        ),
    ],
)
def test_owners_of_borrowed_nodes_are_named(
    lent: dict[str, int] | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_status(job(), [], NOW, borrowed=borrowed_text(lent))
    assert f"Borrows:     {text}\n" in capsys.readouterr().out


def test_job_that_does_not_borrow_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(job(), [], NOW)
    assert "Borrows" not in capsys.readouterr().out
