from __future__ import annotations

import os
from dataclasses import replace

import pytest

from bench.gang_spike import figures, process
from bench.gang_spike.outcome import Outcome
from bench.gang_spike.shape import Shape, pod
from bench.gang_spike.sides import SIDES
from bench.report import Goal

LARGE = Shape(1, 5000)


def outcome(side: str, seconds: float | None, repetition: int = 0, shape: Shape = LARGE, cpu: float = 2.0) -> Outcome:
    has_scheduler = side != "raw"
    return Outcome(
        side=side,
        shape=shape,
        repetition=repetition,
        created_s=1.0,
        first_bound_s=1.5,
        all_bound_s=seconds,
        bound=shape.pods if seconds is not None else 7,
        whole_gangs=shape.gangs if seconds is not None else 0,
        cpu_s={"scheduler": cpu} if has_scheduler else {},
        rss_peak_mb=150.0 if has_scheduler else None,
    )


def goals(*outcomes: Outcome) -> list[Goal]:
    return list(figures.report(outcomes, 5000).goals)


@pytest.mark.parametrize("text", ["5000", "0x4", "4x0", "-1x4", "4 x 4", "1x5000000"])
def test_invalid_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="10x500"):
        Shape.parse(text)


def test_a_shape_is_read_as_it_is_written() -> None:
    shape = Shape.parse("10x500")
    assert (str(shape), shape.pods, len(shape.gang_names())) == ("10x500", 5000, 10)


def test_a_share_compares_with_the_limit_of_the_same_repetition() -> None:
    made = [outcome("raw", 8.0, 0), outcome("raw", 16.0, 1), outcome("muster", 10.0, 0), outcome("muster", 18.0, 1)]
    found = figures.report(made, 5000)
    assert found.figures["muster_1x5000_share_of_raw_min"] == 0.8
    assert found.figures["muster_1x5000_share_of_raw_max"] == pytest.approx(0.889, abs=0.001)
    assert found.goals[0].met


def test_share_of_cpu_is_shown_beside_the_seconds() -> None:
    raw, ours = outcome("raw", 8.0), outcome("muster", 12.0)
    made = [replace(raw, cpu_to_bound_s=16.0), replace(ours, cpu_to_bound_s=20.0)]
    found = figures.report([*made, outcome("muster", None, 1)], 5000).figures
    assert found["muster_1x5000_cpu_share_of_raw"] == 0.8
    assert found["muster_1x5000_share_of_raw"] == pytest.approx(0.667, abs=0.001)


def test_a_spike_that_did_not_end_meets_no_goal_however_fast_the_others_were() -> None:
    made = [outcome("raw", 8.0, 0), outcome("raw", 8.0, 1), outcome("muster", 8.0, 0), outcome("muster", None, 1)]
    share = goals(*made)[0]
    assert (share.got, share.met) == (None, False)
    found = figures.report(made, 5000).figures
    assert (found["muster_1x5000_unfinished"], found["muster_1x5000_unfinished_bound_pods"]) == (1, 7)


def test_cpu_and_memory_are_judged_for_the_large_gang_only() -> None:
    share, cpu, memory = goals(outcome("raw", 8.0), outcome("muster", 9.0, cpu=3.5))
    assert (share.met, cpu.met, memory.met) == (True, False, True)
    assert len(goals(outcome("raw", 8.0, shape=Shape(10, 500)))) == 1


def test_sides_differ_in_what_they_say_of_the_gang_only() -> None:
    made = {}
    for name, side in SIDES.items():
        body = pod("gang-0-3", side.scheduler_name, side.in_gang("gang-0", 3, 5))
        made[name] = {"containers": body["spec"]["containers"], "name": body["metadata"]["name"]}
    assert all(each == made["raw"] for each in made.values())


def test_used_cpu_of_a_process_comes_from_the_kernel() -> None:
    before = process.cpu_s(os.getpid())
    while process.cpu_s(os.getpid()) == before:
        sum(range(100_000))
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert process.peak_rss_mb(os.getpid()) > 64
