"""Figures of bench.data: shares within a repetition, and goals that are not met where a side is missing."""

from __future__ import annotations

from bench.data.figures import report, tables
from bench.data.processes import Measured


def measured(seconds: float, **more: float) -> Measured:
    return Measured(seconds=seconds, bytes=10**9, samples=0, cpu_s=0.5, peak_mb=50.0, grown_mb=1.0, **more)


def test_share_compares_repetitions_with_the_faster_way_of_obstore() -> None:
    cold = {
        "obstore_whole": [measured(2.0), measured(4.0), measured(2.0)],
        "obstore_ranges": [measured(1.0), measured(2.0), measured(1.0)],
        "muster_stream": [measured(2.0), measured(2.0), measured(1.25)],
    }
    made = report({"cold": cold}, 10**9)
    assert made.figures["cold_muster_stream_share"] == 0.8  # of 0.5, 1.0 and 0.8
    assert made.figures["cold_obstore_whole_share"] == 0.5
    assert [(goal.got, goal.met) for goal in made.goals] == [(0.8, False)]


def test_a_goal_whose_side_failed_is_not_met() -> None:
    made = report({"cold": {"obstore_ranges": [measured(1.0)]}}, 10**9)
    assert [(goal.got, goal.met) for goal in made.goals] == [(None, False)]


def test_downloads_are_judged_by_the_worst_repetition() -> None:
    sides = {"3_nodes": [measured(1.0, downloads=1.0), measured(1.0, downloads=1.2)]}
    assert [(goal.got, goal.met) for goal in report({"gang": sides}, 10**9).goals] == [(1.2, False)]


def test_blocked_share_compares_saves_of_a_repetition() -> None:
    saves = {
        "muster_save": [measured(1.0, blocked_s=2.0), measured(1.0, blocked_s=1.0)],
        "muster_background_save": [measured(1.0, blocked_s=0.1), measured(1.0, blocked_s=0.03)],
    }
    made = report({"saves": saves}, 10**9)
    assert [(goal.got, goal.met) for goal in made.goals] == [(0.04, True)]
    assert len(tables({"saves": saves})) == 1
