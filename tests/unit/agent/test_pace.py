"""When the agent writes: never twice in a period, never silent for longer than a heartbeat, never all nodes at once."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.pace import BACKOFF_S_MAX, SPREAD_S, Pace
from muster.agent.shares import share

PERIOD_S, HEARTBEAT_S = 5.0, 300.0
EVENTS = st.lists(
    st.tuples(st.floats(0.01, 400.0), st.sampled_from(["new", "grown", "ok", "ok", "failed", "busy"])), max_size=60
)


def pace(node: str = "node-1", heartbeat_s: float = HEARTBEAT_S) -> Pace:
    return Pace(node, period_s=PERIOD_S, heartbeat_s=heartbeat_s, now_s=0.0)


def settled(node: str = "node-1", heartbeat_s: float = HEARTBEAT_S) -> Pace:
    it = pace(node, heartbeat_s)
    it.tried(1.0)
    it.written(1.0)
    return it


@given(st.text(min_size=1, max_size=8), EVENTS)
def test_never_two_writes_in_a_period_and_never_silent_for_longer_than_a_heartbeat(
    node: str, events: list[tuple[float, str]]
) -> None:
    it, now_s, last_s, refused = pace(node), 0.0, float("-inf"), False
    for wait_s, event in events:
        due_s = it.due_s()
        if not refused:
            assert due_s - max(last_s, 0.0) <= HEARTBEAT_S + PERIOD_S
        now_s = max(now_s, min(now_s + wait_s, due_s) if event not in ("new", "grown") else now_s + wait_s)
        match event:
            case "new":
                it.new(now_s)
            case "grown":
                it.grown(now_s)
            case _:
                now_s = max(now_s, it.due_s())
                assert now_s >= last_s + PERIOD_S  # a difference would be rounded
                it.tried(now_s)
                last_s = now_s
                refused = event != "ok"
                if event == "ok":
                    it.written(now_s)
                else:
                    it.failed(now_s, 30.0 if event == "busy" else None, 0.5)
                    assert it.due_s() >= now_s + (30.0 if event == "busy" else 0.0)


def test_something_new_is_written_at_once_but_not_by_all_nodes_at_once() -> None:
    due = []
    for number in range(1000):
        it = settled(f"node-{number}", heartbeat_s=1e9)
        it.new(100.0)
        due.append(it.due_s())
    assert min(due) >= 100.0
    assert max(due) <= 100.0 + SPREAD_S
    per_tenth = Counter(int((each - 100.0) * 10) for each in due)
    assert max(per_tenth.values()) < 200


def test_heartbeats_of_a_fleet_are_spread_however_it_was_started() -> None:
    due = [settled(f"node-{number}").due_s() for number in range(3000)]
    per_tenth = Counter(int(each // 30) for each in due)
    assert max(per_tenth.values()) < 400


def test_growing_incident_is_written_less_often_and_a_new_one_resets_that() -> None:
    it, now_s, pauses = settled(heartbeat_s=1e9), 1.0, []
    for _ in range(4):
        it.grown(now_s + 1)
        due_s = it.due_s()
        pauses.append(due_s - now_s)
        it.tried(due_s)
        it.written(due_s)
        now_s = due_s
    assert pauses == [60.0, 120.0, 240.0, 480.0]
    it.new(now_s + 10)
    assert it.due_s() <= now_s + 10 + SPREAD_S


def test_an_api_server_that_is_away_is_asked_less_often_and_its_word_counts() -> None:
    it, now_s = pace(), 0.0
    pauses = []
    for _ in range(8):
        it.tried(now_s)
        it.failed(now_s, None, luck=1.0)
        pauses.append(it.due_s() - now_s)
        now_s = it.due_s()
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_S_MAX
    it.tried(now_s)
    it.failed(now_s, 90.0, luck=0.0)
    assert it.due_s() >= now_s + 90.0


@pytest.mark.slow
def test_a_fleet_whose_api_server_comes_back_never_comes_at_once() -> None:
    """All have something new at the same moment, and the API server is away for a quarter of an hour."""
    nodes, away_s = 2000, 900.0
    luck = random.Random(5)
    fleet = [settled(f"node-{number}") for number in range(nodes)]
    for it in fleet:
        it.new(10.0)
    due = [(it.due_s(), number) for number, it in enumerate(fleet)]
    heapq.heapify(due)
    tries: Counter[int] = Counter()
    written: Counter[int] = Counter()
    while len(written) < nodes:
        now_s, number = heapq.heappop(due)
        tries[int(now_s)] += 1
        fleet[number].tried(now_s)
        if now_s < away_s:
            fleet[number].failed(now_s, None, luck.random())
            heapq.heappush(due, (fleet[number].due_s(), number))
        else:
            fleet[number].written(now_s)
            written[number] += 1
    late = {second: count for second, count in tries.items() if second >= 120}
    assert max(late.values()) < nodes / 15, "of a fleet that tries once in 45 s in the mean"
    assert max(tries) <= away_s + BACKOFF_S_MAX + PERIOD_S, "and the last is back after a minute"


def test_refused_write_is_repeated() -> None:
    it = settled()
    it.new(20.0)
    it.tried(21.0)
    it.failed(22.0, None, luck=1.0)
    assert it.due_s() <= 22.0 + PERIOD_S + SPREAD_S


def test_a_node_keeps_its_place() -> None:
    assert share("node-1", "kernel-log") == share("node-1", "kernel-log") != share("node-2", "kernel-log")


def test_a_report_that_holds_is_confirmed_each_minute_for_as_long_as_it_holds() -> None:
    """Issue 11: the controller counts a report against a node only if it is newer than the node's last sign of life."""
    it, now_s, pauses = settled(heartbeat_s=1e9), 1.0, []
    for _ in range(30):
        it.grown(now_s + 60.0)
        it.confirmed(now_s + 60.0)
        pauses.append(it.due_s() - now_s)
        now_s = it.due_s()
        it.tried(now_s)
        it.written(now_s)
    assert set(pauses) == {60.0}, "never more often, and never more seldom"
    it.confirmed(now_s + 1.0)
    assert it.due_s() == now_s + 60.0
