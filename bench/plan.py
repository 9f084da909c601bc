"""How long the scheduler thinks: from scratch, again after one event, and to explain a gang that waits.

Only decide, explain and the state's upkeep are timed, with the garbage collector as the controller sets it; the API
server is a model in memory. There is no peer in this run: the figures compared with other schedulers come from benches
that go through a real API server.
"""

from __future__ import annotations

import argparse
import functools
import gc
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Goal, Report, at_most, emit
from muster.cli.processes.controller import GARBAGE_AFTER
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.forecast.run_times import RECORDS_MAX, EndedRun, RunTimes
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import Plan, WritePlacement
from tests.unit.scheduler.world import GPU, World, node

LARGE_NODES = 5000
HOLDER_NODES = 50
WAITING_NODES = 2


Taken = tuple[float, float]
"""Elapsed and CPU milliseconds; on a machine with other work only the CPU time shows the length of the work."""


def milliseconds(work: Callable[[], object]) -> Taken:
    cpu_started, started = time.process_time(), time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3, (time.process_time() - cpu_started) * 1e3


def summary(name: str, taken: Sequence[Taken]) -> dict[str, float]:
    walls, cpus = zip(*taken, strict=True)
    return {
        f"{name}_p50_ms": statistics.median(walls),
        f"{name}_p99_ms": percentile(walls, 0.99),
        f"{name}_max_ms": max(walls),
        f"{name}_p50_cpu_ms": statistics.median(cpus),
        f"{name}_p99_cpu_ms": percentile(cpus, 0.99),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below `share` of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def with_nodes(count: int) -> World:
    world = World()
    for number in range(count):
        world.set_node(node(f"node-{number:06}"))
    return world


def from_scratch(nodes: int, pending: int) -> dict[str, float]:
    """Nodes and pods are known, nothing is indexed or planned: the gangs together want every node."""
    world = with_nodes(nodes)
    size = nodes // pending
    for number in range(pending):
        world.add_gang(f"gang-{number:06}", size)
    index_ms, index_cpu_ms = milliseconds(world.state.snapshot)
    plans: list[Plan] = []
    plan_ms, plan_cpu_ms = milliseconds(lambda: plans.append(world.decide()))
    placed = sum(isinstance(action, WritePlacement) for action in plans[0].actions)
    assert placed == pending, f"{placed} of {pending} gangs were placed"
    return {
        "scratch_index_ms": index_ms,
        "scratch_plan_ms": plan_ms,
        "scratch_s": (index_ms + plan_ms) / 1e3,
        "scratch_cpu_s": (index_cpu_ms + plan_cpu_ms) / 1e3,
    }


def replans(nodes: int, pending: int, rounds: int) -> dict[str, float]:
    """Large gangs have every node, many wait; nodes fail and come back, each time a plan is made."""
    world = with_nodes(nodes)
    for number in range(-(-nodes // LARGE_NODES)):
        world.add_gang(f"large-{number:06}", min(LARGE_NODES, nodes - number * LARGE_NODES))
    world.run()
    for number in range(pending):
        world.add_gang(f"waiting-{number:06}", WAITING_NODES)
    world.decide()
    taken = []
    for number in range(rounds):
        changed = node(f"node-{number // 2:06}", ready=number % 2 == 1)
        world.now += 1.0

        def one_event(changed: object = changed) -> None:
            world.set_node(changed)  # type: ignore[arg-type]
            world.decide()

        taken.append(milliseconds(one_event))
    return summary("replan", taken)


RACK, ZONE = "example.com/rack", "topology.kubernetes.io/zone"
RACK_NODES = 16
ZONES = 5


def gangs_with_rules(nodes: int, pending: int, rounds: int) -> dict[str, float]:
    """One node of each rack is free, none in the last zone; gangs that are to be together, apart or even all wait.

    A plan is made after each event: nodes that they cannot use fail and come back, then nodes that they can use do.
    """
    world = World()
    kinds: dict[str, dict[str, str]] = {}
    for number in range(nodes):
        rack, place = divmod(number, RACK_NODES)
        held = place > 0 or rack % ZONES == ZONES - 1
        labels = {RACK: f"rack-{rack:04}", ZONE: f"zone-{rack % ZONES}", "held": str(held), "kind": "large"}
        kinds[f"node-{number:06}"] = labels
    kinds |= {f"other-{number:06}": {"kind": "other"} for number in range(RACK_NODES)}
    for name, labels in kinds.items():
        world.set_node(node(name, labels=labels))
    world.add_gang(
        "holder", sum(labels.get("held") == "True" for labels in kinds.values()), nodeSelector={"held": "True"}
    )
    world.run()
    for number in range(pending):
        world.add_gang(f"ruled-{number:06}", 8 + number % 8, nodeSelector={"kind": "large"}, **rules_of(number))
    waiting = len(world.run().waiting)
    assert waiting == pending, f"{waiting} of {pending} gangs wait"
    figures: dict[str, float] = {}
    for about, prefix in (("others", "other"), ("related", "node")):
        taken = []
        for at in range(rounds):
            name = f"{prefix}-{at // 2 % RACK_NODES:06}"
            changed = node(name, ready=at % 2 == 1, labels=kinds[name])
            world.now += 1.0

            def one_event(changed: object = changed) -> None:
                world.set_node(changed)  # type: ignore[arg-type]
                world.decide()

            taken.append(milliseconds(one_event))
        figures |= summary(f"rules_replan_{about}", taken)
    return figures


def rules_of(number: int) -> dict[str, object]:
    """Together in a rack; or apart by zone, more than there are; or even over zones."""
    who = {"matchLabels": {"muster.dev/gang": f"ruled-{number:06}"}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if number % 3 == 0:
        return {"affinity": {"podAffinity": {required: [{"topologyKey": RACK, "labelSelector": who}]}}}
    if number % 3 == 1:
        return {"affinity": {"podAntiAffinity": {required: [{"topologyKey": ZONE, "labelSelector": who}]}}}
    even = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": who}
    return {"topologySpreadConstraints": [even]}


USERS = 40


def predictions(nodes: int, pending: int, rounds: int) -> dict[str, float]:
    """Jobs of known users use most nodes, half of these in parts. A large gang waits, and many jobs behind it.

    A third of them is restartable; of the others it is known how long jobs of their users ran. Each event is the end of
    a running job, and one more job comes.
    """
    world, rng = World(), random.Random(0)
    for number in range(nodes):
        world.set_node(node(f"node-{number:06}"))

    def job(number: int, gpus: int, size: int) -> str:
        name = f"user{number % USERS}x-{number}"
        world.set_job(name, JobFacts(restartable=number % 3 == 0, requeueable=True, grace_s=30.0))
        requests = {"containers": [{"name": "worker", "resources": {"limits": {GPU: str(gpus)}}}]}
        world.add_gang(name, size, **requests)
        return name

    ended = [
        EndedRun(
            Likeness(namespace="default", pattern=f"user{number % USERS}x", nodes=1, gpus=1 + number % 8),
            rng.lognormvariate(7.0, 2.0), True, world.now,
        )
        for number in range(RECORDS_MAX)
    ]  # fmt: skip
    world.state.set_run_times(RunTimes(ended))
    shapes = [(8, 2)] * (nodes // 4 - 8) + [(2, 1)] * (nodes * 2)
    running = []
    for number, (gpus, size) in enumerate(shapes):
        running.append(job(number, gpus, size))
        if number % 100 == 0:
            world.run()  # so that jobs began at different times
    world.run()
    world.add_gang("large", nodes // 4)
    for number in range(pending):
        job(10**6 + number, rng.choice([1, 2, 4, 8]), 1)
    world.run(rounds=200)
    taken = []
    for number in range(rounds):
        name = running.pop(rng.randrange(len(running)))
        world.now += 5.0
        job(2 * 10**6 + number, 1, 1)

        def one_event(name: str = name) -> None:
            world.remove_gang(name)
            world.set_job(name, JobFacts(ended="Succeeded"))

        one_event()
        taken.append(milliseconds(world.decide))
        world.run(rounds=200)
    return summary("predictions_replan", taken)


def explanations(nodes: int, pending: int, rounds: int) -> dict[str, float]:
    """Gangs of 50 have all nodes but those that are left over, many wait; gangs throughout the queue are explained."""
    world = with_nodes(nodes)
    for number in range(nodes // HOLDER_NODES):
        world.add_gang(f"holder-{number:06}", HOLDER_NODES)
    world.run()
    for number in range(pending):
        world.add_gang(f"waiting-{number:06}", WAITING_NODES)
    snapshot = world.state.snapshot()
    taken = []
    for number in range(rounds):
        gang = world.gang(f"waiting-{number * pending // rounds:06}")
        taken.append(milliseconds(functools.partial(explain, snapshot, gang, now=world.now)))
    return summary("explain", taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=10_000, help="gangs that wait")
    parser.add_argument("--rounds", type=int, default=300, help="events, each followed by a plan")
    parser.add_argument("--explain-nodes", type=int, default=7500)
    parser.add_argument("--explain-pending", type=int, default=2000)
    parser.add_argument("--explain-rounds", type=int, default=300)
    parser.add_argument("--rules-nodes", type=int, default=5000)
    parser.add_argument("--rules-pending", type=int, default=50, help="gangs with rules about other pods that wait")
    parser.add_argument("--rules-rounds", type=int, default=300)
    parser.add_argument("--predicted-nodes", type=int, default=2000)
    parser.add_argument("--predicted-pending", type=int, default=2000, help="gangs that wait, with predictions")
    parser.add_argument("--predicted-rounds", type=int, default=300)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    figures: dict[str, float] = {
        "nodes": arguments.nodes,
        "pending_gangs": arguments.pending,
        "explain_nodes": arguments.explain_nodes,
        "explain_pending_gangs": arguments.explain_pending,
        "rules_nodes": arguments.rules_nodes,
        "rules_pending_gangs": arguments.rules_pending,
        "predicted_nodes": arguments.predicted_nodes,
        "predicted_pending_gangs": arguments.predicted_pending,
    }
    parts: list[Callable[[], dict[str, float]]] = [
        functools.partial(explanations, arguments.explain_nodes, arguments.explain_pending, arguments.explain_rounds),
        functools.partial(gangs_with_rules, arguments.rules_nodes, arguments.rules_pending, arguments.rules_rounds),
        functools.partial(
            predictions, arguments.predicted_nodes, arguments.predicted_pending, arguments.predicted_rounds
        ),
        functools.partial(from_scratch, arguments.nodes, arguments.pending),
        functools.partial(replans, arguments.nodes, arguments.pending, arguments.rounds),
    ]
    gc.set_threshold(*GARBAGE_AFTER)
    for part in parts:
        figures |= {name: round(figure, 3) for name, figure in part().items()}
    figures["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    table = Table("", "", title="planning")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}")
    goals: list[Goal] = []
    if arguments.nodes >= 100_000 and arguments.pending >= 10_000:
        goals += [
            at_most("100,000 nodes, 10,000 pending gangs from scratch: s", 1.0, figures["scratch_s"]),
            at_most("replan after one event, p50: ms", 5.0, figures["replan_p50_ms"]),
            at_most("replan after one event, p99, gc included: ms", 20.0, figures["replan_p99_ms"]),
        ]
    if arguments.explain_nodes >= 7500 and arguments.explain_pending >= 2000:
        goals.append(
            at_most("explain, 7,500 nodes, 2,000 pending gangs, p99: ms", 50.0, figures["explain_p99_ms"]),
        )
    if arguments.predicted_nodes >= 2000 and arguments.predicted_pending >= 2000:
        goals.append(
            at_most(
                "replan after one event, 2,000 pending gangs with predictions, p99: ms",
                20.0,
                figures["predictions_replan_p99_ms"],
            )
        )
    if arguments.rules_nodes >= 5000 and arguments.rules_pending >= 50:
        goals += [
            at_most(
                f"replan, 5,000 nodes, 50 gangs with rules wait, {about}, p50: ms",
                5.0,
                figures[f"rules_replan_{key}_p50_ms"],
            )
            for about, key in (("about others", "others"), ("related", "related"))
        ]
    emit(Report("plan", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
