"""Whether Prometheus can be reached: what counts, and how much the log says of it."""

from __future__ import annotations

import pytest

from muster.telemetry.guard.serving.presence import REPEAT_S, Presence


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def is_away(presence: Presence) -> bool:
    return presence.failure is not None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def presence(clock: Clock, caplog: pytest.LogCaptureFixture) -> Presence:
    caplog.set_level("INFO")
    return Presence("http://p:9090", clock)


def test_failure_is_that_of_the_last_attempt(presence: Presence) -> None:
    assert not is_away(presence)
    presence.lost("refused")
    failure = presence.failure
    assert failure is not None
    assert (failure.outcome, failure.status) == ("unreachable", 502)
    presence.answered(404)
    assert not is_away(presence)


def test_server_that_starts_is_away_but_a_slow_query_shows_nothing(presence: Presence) -> None:
    presence.answered(503)
    assert not is_away(presence)
    presence.answered(503, about_itself=True)
    assert is_away(presence)
    presence.answered(503)
    assert is_away(presence)


def test_log_repeats_once_a_minute_and_says_when_it_is_back(
    presence: Presence, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for clock.now_s in range(int(REPEAT_S) + 1):
        presence.lost("refused")
    presence.answered(200)
    lines = [each.getMessage() for each in caplog.records]
    assert ["cannot be reached" in each for each in lines] == [True, True, False]
    assert lines[-1] == "Prometheus at http://p:9090 answers again, after 60 s"


def test_server_that_comes_and_goes_does_not_fill_the_log(
    presence: Presence, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(100):
        clock.now_s = n / 10
        presence.lost("refused")
        presence.answered(200)
    assert len(caplog.records) == 2
