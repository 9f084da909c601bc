"""How long the scheduler thinks: decide on many nodes with one gang of all of them, and again after one event.

Only decide and the state's upkeep are timed; the API server is a model in memory. There is no peer in this run: the
figures compared with other schedulers come from benches that go through a real API server.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.scheduler.plan import Bind, WritePlacement
from tests.unit.scheduler.world import World, node


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def carry_out(world: World, actions: Sequence[object]) -> None:
    for action in actions:
        world.carry_out(action)


def measure(nodes: int, pending: int, rounds: int) -> dict[str, float]:
    world = World()
    for number in range(nodes):
        world.set_node(node(f"node-{number:05}"))
    load_ms = milliseconds(world.state.snapshot)
    pods_ms = milliseconds(lambda: world.add_gang("large", nodes))
    plan_ms = milliseconds(world.decide)
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    world.carry_out(write)
    binds_ms = milliseconds(world.decide)
    actions = world.decide().actions
    assert sum(isinstance(action, Bind) for action in actions) == nodes
    carried_ms = milliseconds(lambda: carry_out(world, actions))
    world.run()
    for number in range(pending):
        world.add_gang(f"waiting-{number:05}", 2)
    world.decide()
    replans, events = [], []
    for number in range(rounds):
        name = f"node-{number:05}"
        obj = node(name, ready=number % 2 == 1)
        events.append(milliseconds(functools.partial(world.set_node, obj)))
        replans.append(milliseconds(world.decide))
    return {
        "nodes": nodes,
        "pending_gangs": pending,
        "index_nodes_ms": load_ms,
        "take_in_pods_ms": pods_ms,
        "plan_gang_ms": plan_ms,
        "plan_binds_ms": binds_ms,
        "take_in_binds_ms": carried_ms,
        "replan_p50_ms": statistics.median(replans),
        "replan_max_ms": max(replans),
        "event_p50_ms": statistics.median(events),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pending", type=int, default=2000, help="gangs of 2 that wait behind the large one")
    parser.add_argument("--rounds", type=int, default=100, help="events, each followed by a plan")
    arguments = parser.parse_args()
    figures = measure(arguments.nodes, arguments.pending, arguments.rounds)
    for name, figure in figures.items():
        print(f"{name:24} {figure:10.3f}")
    got = figures["replan_p50_ms"]
    goal = {"name": "replan p50 below 5 ms", "want": 5.0, "got": got, "met": got < 5.0}
    print(json.dumps({"bench": "plan", "figures": figures, "goals": [goal]}))


if __name__ == "__main__":
    main()
