from __future__ import annotations

from muster.network.uplink.demand import wanted

LINE = 10_000


def test_unthrottled_subject_wants_a_tenth_more_than_it_uses() -> None:
    assert wanted(1000, 1000, 0, LINE, 0) == 1100


def test_throttled_subject_wants_the_line_rate() -> None:
    assert wanted(950, 950, 1000, LINE, 0) == LINE
    assert wanted(949, 949, 1000, LINE, 0) == 1043


def test_subject_whose_packets_wait_wants_the_line_rate() -> None:
    assert wanted(10, LINE, 0, LINE, 0) == LINE


def test_demand_is_never_above_the_line_rate() -> None:
    assert wanted(LINE, 2 * LINE, 0, LINE, 0) == LINE
    assert wanted(20_000, 20_000, 0, LINE, 0) == LINE


def test_small_changes_of_use_keep_the_demand() -> None:
    for used in (700, 900, 950):
        assert wanted(used, used, 5000, LINE, 1000) == 1000
    assert wanted(690, 690, 5000, LINE, 1000) == 759
    assert wanted(980, 980, 5000, LINE, 1000) == 1078


def test_idle_subject_wants_nothing() -> None:
    assert wanted(0, 0, 1000, LINE, 1000) == 0
