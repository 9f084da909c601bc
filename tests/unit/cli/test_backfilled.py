"""What `muster status`, `muster list` and `muster run --follow` show of a job that is or was backfilled."""

from __future__ import annotations

import pytest

from muster.api.training_job_status import BackfillStatus
from muster.cli.jobs import describe
from muster.cli.jobs.list import BACKFILL, HEADERS, WIDE_HEADERS, table
from muster.cli.jobs.status import print_status
from tests.unit.cli.test_status import NOW, job

NOT_YET = BackfillStatus(gang="ml/large")
AGAIN = BackfillStatus(gang="ml/large", asked=2, seconds_lost=150.4)
BEFORE = BackfillStatus(asked=1)


@pytest.mark.parametrize(
    ("backfill", "text"),
    [
        (NOT_YET, "on nodes reserved for ml/large, may be asked to leave"),
        (AGAIN, "on nodes reserved for ml/large, may be asked to leave; asked to leave 2 times, 2m30s of work lost"),
        (BEFORE, "asked to leave 1 time, no work lost"),
    ],
)
def test_status_names_the_gang_the_requests_and_the_loss(
    backfill: BackfillStatus, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_status(job(backfill=backfill), [], NOW)
    assert f"Backfilled:  {text}\n" in capsys.readouterr().out


@pytest.mark.parametrize("backfill", [None, BackfillStatus()])
def test_status_of_another_job_shows_nothing(
    backfill: BackfillStatus | None, capsys: pytest.CaptureFixture[str]
) -> None:
    print_status(job(backfill=backfill), [], NOW)
    assert "Backfilled" not in capsys.readouterr().out


def test_list_has_the_column_only_where_a_job_is_or_was_backfilled() -> None:
    headers, rows = table([job(), job(backfill=AGAIN), job(backfill=BEFORE)], wide=False, namespaces=False)
    assert headers == (*HEADERS, BACKFILL)
    assert [row[-1] for row in rows] == ["-", "for ml/large, asked 2x, lost 2m30s", "asked 1x"]
    headers, rows = table([job()], wide=True, namespaces=True)
    assert headers == ("NAMESPACE", *WIDE_HEADERS)
    assert len(rows[0]) == len(headers)


def test_json_has_the_typed_fields() -> None:
    data = describe.as_data(job(backfill=AGAIN))
    assert data["status"]["backfill"] == {"gang": "ml/large", "asked": 2, "secondsLost": 150.4}


def test_following_reports_once_that_the_job_is_backfilled() -> None:
    before, after = job(phase="Running"), job(phase="Running", backfill=NOT_YET)
    assert describe.events(before, after) == ["uses nodes reserved for ml/large; may be asked to leave"]
    assert describe.events(after, after) == []
    assert describe.events(after, job(phase="Running", backfill=BackfillStatus())) == []
