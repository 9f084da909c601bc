"""When a waiting job is expected to start, as `muster status`, `list`, `explain` and `run --follow` print it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from muster.api.training_job_status import ForecastBasis, StartForecast, StartInterval
from muster.cli.jobs import describe
from muster.cli.jobs.list import HEADERS, STARTS, table
from muster.cli.jobs.status import print_status
from muster.scheduler.explain.why_waiting import Explanation
from muster.scheduler.queue.backfill import Start
from tests.unit.cli.test_status import NOW, job

HOUR = timedelta(hours=1)
KNOWN = StartForecast(
    interval=StartInterval(earliest=NOW + 2 * HOUR, latest=NOW + 9 * HOUR),
    probability=0.8,
    basis="Similar",
    jobs=40,
    made_at=NOW,
)
TEXT = "in 2h to 9h (80%), estimated from 40 jobs like those in front"


def based(basis: ForecastBasis) -> StartForecast:
    return replace(KNOWN, basis=basis)


def between(earliest: timedelta, latest: timedelta | None) -> StartForecast:
    return replace(
        KNOWN, interval=StartInterval(earliest=NOW + earliest, latest=NOW + latest if latest is not None else None)
    )


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (KNOWN, TEXT),
        (based("General"), "in 2h to 9h (80%), estimated from this cluster's jobs in general"),
        (based("Limits"), "in 2h to 9h (80%), estimated from the time limits in front"),
        (between(-HOUR, HOUR), "within 60m (80%), estimated from 40 jobs like those in front"),
        (between(HOUR, None), "in 60m or later, estimated from 40 jobs like those in front"),
        (between(-HOUR, None), "any moment or later, estimated from 40 jobs like those in front"),
        (between(-2 * HOUR, -HOUR), "overdue by 60m, estimated from 40 jobs like those in front"),
        (
            StartForecast(unknown="TooFewJobs", jobs=4),
            "unknown: 10 jobs must have ended before; 4 have",
        ),
        (StartForecast(unknown="TooFarBack"), "unknown: too many jobs are in front"),
        (StartForecast(unknown="TooUncertain"), "unknown: it is too far away, or a job in front has no estimate"),
    ],
)
def test_status_says_when_the_job_starts_or_why_that_is_not_known(
    forecast: StartForecast, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_status(job(phase="Pending", attempt=1, start_forecast=forecast), [], NOW)
    lines = capsys.readouterr().out.splitlines()
    assert f"Starts:      {text}" in " ".join(line.strip() for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_job_that_runs_shows_no_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    running = job(phase="Running", attempt=1, start_forecast=KNOWN)
    print_status(running, [], NOW)
    assert "Starts" not in capsys.readouterr().out
    assert table([running], wide=False, namespaces=False)[0] == HEADERS


def test_list_has_the_column_only_where_a_start_is_estimated() -> None:
    now = datetime.now(UTC)
    soon = StartInterval(earliest=now + 2.5 * HOUR, latest=now + 9.5 * HOUR)
    waits = job(phase="Pending", start_forecast=replace(KNOWN, interval=soon))
    unknown = job(phase="Pending", start_forecast=StartForecast(unknown="TooFewJobs"))
    headers, rows = table([waits, unknown, job()], wide=False, namespaces=False)
    assert headers == (*HEADERS, STARTS)
    assert [row[-1] for row in rows] == ["in 2h29m to 9h29m", "-", "-"]


def test_json_has_the_typed_fields() -> None:
    data = describe.as_data(job(phase="Pending", start_forecast=KNOWN))["status"]["startForecast"]
    assert data == {
        "interval": {"earliest": "2026-01-01T02:00:00Z", "latest": "2026-01-01T09:00:00Z"},
        "probability": 0.8,
        "basis": "Similar",
        "jobs": 40,
        "madeAt": "2026-01-01T00:00:00Z",
    }


def test_following_reports_each_estimate_once() -> None:
    now = datetime.now(UTC)
    interval = StartInterval(earliest=now + 2.5 * HOUR, latest=now + 9.5 * HOUR)
    before = job(phase="Pending", message="m")
    after = job(phase="Pending", message="m", start_forecast=replace(KNOWN, interval=interval))
    (line,) = describe.events(before, after)
    assert line.startswith("starts: in 2h29m to 9h29m (80%)")
    assert describe.events(after, after) == []


@pytest.mark.parametrize(
    ("when", "expected", "lines"),
    [
        (None, "", ["starts: unknown"]),
        (None, TEXT, [f"starts: {TEXT}"]),
        (Start(0.0, 60.0), "", ["starts: by 1970-01-01 00:01:00 UTC, when the time limits of ..."]),
        (Start(0.0, 60.0), TEXT, ["starts: by ...", f"expected: {TEXT}"]),
    ],
)
def test_explain_prints_the_limits_first(when: Start | None, expected: str, lines: list[str]) -> None:
    found = Explanation("ns/train", True, "Behind", "waits", when=when, expected=expected).lines()[1:]
    assert len(found) == len(lines)
    assert all(
        line.startswith(wanted.removesuffix("...")) if wanted.endswith("...") else line == wanted
        for line, wanted in zip(found, lines, strict=True)
    )
