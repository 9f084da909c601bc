"""The process's clock while a user sets the time of day."""

from __future__ import annotations

import time

import pytest

from muster.kube.clock import steady_time


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
def test_setting_the_time_of_day_moves_nothing(shift_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = steady_time(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    assert 0 <= steady_time() - before < 60


def test_clock_advances_and_starts_at_the_time_of_day() -> None:
    first, now = steady_time(), time.time()
    assert abs(first - now) < 60
    time.sleep(0.01)
    assert steady_time() - first >= 0.01
