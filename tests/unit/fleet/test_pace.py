"""The pace of joins: down when the API server has too much to do, up only while it is used, never to a halt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.fleet.joins.pace import (
    BACK_OFF,
    LEAST,
    STEP,
    Bounds,
    Cause,
    Judgement,
    Pace,
    Verdict,
    coming_max,
    judge,
    onwards,
    start,
)
from muster.fleet.joins.scrape import Reading, Signals, between, read

BOUNDS = Bounds(start=5, most=20, period_s=5.0)


@pytest.mark.parametrize(
    ("signals", "verdict"),
    [
        (Signals(answered=1000, busy=0.1), Verdict.ROOM),
        (Signals(answered=1000, refused=1, busy=0.1), Verdict.ROOM),
        (Signals(answered=1000, refused=2, busy=0.1), Verdict.OVERLOADED),
        (Signals(answered=0, refused=1), Verdict.OVERLOADED),
        (Signals(answered=1000, p99_s=2.5, busy=0.1), Verdict.OVERLOADED),
        (Signals(answered=1000, p99_s=0.8, busy=0.1), Verdict.STRAINED),
        (Signals(answered=1000, p99_s=0.1, busy=0.9), Verdict.STRAINED),
        (Signals(answered=1000, p99_s=0.1, busy=0.1, queued=3), Verdict.STRAINED),
        (Signals(), Verdict.UNKNOWN),
    ],
)
def test_pace_follows_the_latency_of_the_api_server(signals: Signals, verdict: Verdict) -> None:
    assert judge(signals).verdict is verdict


def after(nodes: float, verdict: Verdict, opened: int, waiting: int = 100) -> float:
    return onwards(Pace(nodes), Judgement(verdict, Cause.NONE, ""), opened, waiting, BOUNDS).nodes


def test_a_pace_that_is_used_grows_step_by_step_to_the_bound() -> None:
    assert after(5, Verdict.ROOM, 5) == 5 + STEP
    assert after(20, Verdict.ROOM, 20) == 20


def test_a_pace_that_is_not_used_does_not_grow() -> None:
    assert after(10, Verdict.ROOM, 9) == 10


def test_strain_holds_the_pace_and_overload_halves_it() -> None:
    assert after(10, Verdict.STRAINED, 10) == 10
    assert after(10, Verdict.OVERLOADED, 10) == 10 * BACK_OFF


def test_without_word_from_the_api_server_the_pace_is_that_of_the_start_at_most() -> None:
    assert after(15, Verdict.UNKNOWN, 15) == 5
    assert after(3, Verdict.UNKNOWN, 3) == 3


def test_pace_returns_to_the_start_when_no_node_waits() -> None:
    assert after(15, Verdict.ROOM, 0, waiting=0) == 5
    assert after(2, Verdict.ROOM, 0, waiting=0) == 3


def test_autoscaler_waits_while_there_is_too_much_to_do() -> None:
    assert coming_max(Pace(5.0, Verdict.ROOM), BOUNDS) == 120
    assert coming_max(Pace(5.0, Verdict.OVERLOADED), BOUNDS) == 0


VERDICTS = st.lists(st.tuples(st.sampled_from(Verdict), st.integers(0, 60), st.integers(0, 100)), max_size=60)


@given(VERDICTS, st.integers(1, 30), st.integers(0, 30))
def test_the_pace_is_never_outside_its_bounds_and_never_grows_by_more_than_a_step(
    periods: list[tuple[Verdict, int, int]], first: int, more: int
) -> None:
    bounds = Bounds(start=first, most=first + more)
    pace = start(bounds)
    for verdict, opened, waiting in periods:
        fresh = onwards(pace, Judgement(verdict, Cause.NONE, ""), opened, waiting, bounds)
        assert LEAST <= fresh.nodes <= bounds.most
        if waiting or opened:
            assert fresh.nodes <= pace.nodes + STEP
        if verdict is not Verdict.ROOM:
            assert fresh.nodes <= max(pace.nodes, LEAST)
        if verdict is Verdict.OVERLOADED:
            assert fresh.nodes <= max(LEAST, pace.nodes * BACK_OFF)
        pace = fresh


PAGE = """\
# HELP apiserver_request_total [STABLE] Counter of requests.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",resource="nodes",subresource="",verb="GET"} 900
apiserver_request_total{code="0",resource="pods",subresource="",verb="WATCH"} 5000
apiserver_request_total{code="429",resource="pods",subresource="eviction",verb="POST"} 70
apiserver_request_total{code="429",resource="pods",subresource="",verb="POST"} 30
apiserver_request_duration_seconds_bucket{resource="nodes",subresource="",verb="GET",le="0.1"} 90
apiserver_request_duration_seconds_bucket{resource="nodes",subresource="",verb="GET",le="1"} 99
apiserver_request_duration_seconds_bucket{resource="nodes",subresource="",verb="GET",le="+Inf"} 100
apiserver_request_duration_seconds_bucket{resource="pods",subresource="",verb="LIST",le="0.1"} 0
apiserver_request_duration_seconds_bucket{resource="pods",subresource="",verb="LIST",le="+Inf"} 1000
apiserver_request_duration_seconds_bucket{resource="pods",subresource="log",verb="GET",le="+Inf"} 1000
apiserver_current_inflight_requests{request_kind="mutating"} 3
apiserver_current_inflight_requests{request_kind="readOnly"} 57
process_start_time_seconds 1.7e+09
"""
FLOW_CONTROL = """\
apiserver_flowcontrol_current_executing_seats{flow_schema="a",priority_level="system"} 30
apiserver_flowcontrol_current_executing_seats{flow_schema="exempt",priority_level="exempt"} 500
apiserver_flowcontrol_nominal_limit_seats{priority_level="system"} 60
apiserver_flowcontrol_nominal_limit_seats{priority_level="exempt"} 0
apiserver_flowcontrol_current_inqueue_requests{flow_schema="a",priority_level="system"} 4
apiserver_flowcontrol_rejected_requests_total{flow_schema="a",priority_level="system",reason="timeout"} 31
"""


def test_a_page_of_metrics_is_read() -> None:
    reading = read(PAGE)
    assert reading == Reading(1.7e9, 1000, 30, {0.1: 90, 1.0: 99, float("inf"): 100}, 0.1, 0)
    flows = read(PAGE + FLOW_CONTROL)
    assert (flows.busy, flows.queued, flows.refused) == (0.5, 4, 31)


def test_refusals_and_latency_are_those_between_two_readings() -> None:
    before = read(PAGE)
    later = PAGE.replace('le="1"} 99', 'le="1"} 1099').replace('le="+Inf"} 100\n', 'le="+Inf"} 1100\n')
    later = later.replace('subresource="",verb="POST"} 30', 'subresource="",verb="POST"} 35')
    assert between(before, read(later)) == Signals(answered=5, refused=5, p99_s=1.0, busy=0.1)


def test_another_replica_or_a_restart_does_not_count_as_a_period() -> None:
    before = read(PAGE)
    other = read(PAGE.replace("1.7e+09", "1.8e+09").replace("} 900", "} 90000"))
    assert between(before, other) == Signals(busy=0.1)
    assert between(None, before) == Signals(busy=0.1)


def test_eviction_forbidden_by_a_budget_does_not_count_as_overload() -> None:
    later = PAGE.replace('subresource="eviction",verb="POST"} 70', 'subresource="eviction",verb="POST"} 700')
    assert judge(between(read(PAGE), read(later))).verdict is Verdict.ROOM
