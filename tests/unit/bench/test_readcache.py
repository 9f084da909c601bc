"""The goals of bench.readcache, and the shapes that its arguments name."""

from __future__ import annotations

import argparse

from bench.readcache.__main__ import goals_of, shapes

RUN = {"kib_per_watcher": 25.0, "idle_kib_per_watcher": 24.0, "dropped": 0, "missed": 0, "burst_missed": 0}


def test_shapes_share_deliveries_among_their_watches() -> None:
    arguments = argparse.Namespace(
        node_watchers=500,
        node_events_per_s=50.0,
        node_burst=100,
        all_watchers=[100, 9000],
        pods=7,
        deliveries_per_s=3000.0,
        burst_deliveries=50_000,
        paced_s=5.0,
    )
    node, few, many = shapes(arguments)
    assert (node.receivers, node.pods, node.paced_per_s) == (1, 500, 50.0)
    assert (few.receivers, few.paced_per_s, few.burst) == (100, 30.0, 500)
    assert (many.paced_per_s, many.burst) == (1.0, 10)
    assert "{n}" in node.path
    assert "{n}" not in few.path


def test_dropped_reader_or_missed_event_misses_the_goal() -> None:
    arguments = argparse.Namespace(
        node_watchers=0, all_watchers=[10], pods=1, deliveries_per_s=1.0, burst_deliveries=1, paced_s=1.0
    )
    shape = shapes(arguments)[0]
    met = [goal.met for goal in goals_of(shape, {"direct": [{**RUN, "idle_kib_per_watcher": 70.0}], "cache": [RUN]})]
    assert met == [True, True, True]
    for name in ("dropped", "missed", "burst_missed"):
        assert not goals_of(shape, {"cache": [RUN, {**RUN, name: 1}]})[0].met
    assert not goals_of(shape, {"direct": [RUN], "cache": [{**RUN, "kib_per_watcher": 26.0}]})[-1].met
