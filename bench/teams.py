"""How long it takes to give nodes to teams: all from scratch, and again after one event; what is written at rest.

Only the holdings' upkeep and decide are timed, with the garbage collector as it is; the garbage of making the cluster
is collected before. What is written at rest is counted from the requests of the controller itself, on an API server in
this process. There is no peer in this run: nothing else that we know of does this.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Goal, Report, at_most, emit
from muster.api.crd import KINDS, definition
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.metrics import kube_metrics
from muster.kube.objects.node import Node, NodeCondition, NodeStatus
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from muster.teams.cache import Holdings
from muster.teams.config import parse
from muster.teams.decide import decide
from muster.teams.plan import Plan
from tests.support.apicore import Cluster
from tests.support.teamclusters import TeamCluster
from tests.unit.teams.world import NOW, World, node, shares

TEAMS = 50
GANG_NODES = 8


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below `share` of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def amounts(nodes: int) -> dict[str, str | int]:
    """Half of the teams ask for nodes, half for percent; a twentieth is left over."""
    each = nodes * 19 // 20 // TEAMS
    return {f"team-{number:02}": each if number % 2 else "1.9%" for number in range(TEAMS)}


def made(count: int) -> list[Node]:
    ready = NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),))
    return [msgspec.structs.replace(node(f"node-{number:06}", zone="a"), status=ready) for number in range(count)]


def allocated(nodes: Sequence[Node], text: str) -> tuple[World, Plan, float, float]:
    """Assigns nodes without an owner; returns the world afterwards, the plan, seconds of time and of CPU."""
    world = World()
    gc.collect()
    started, started_cpu = time.perf_counter(), time.process_time()
    holdings = Holdings(parse(text))
    for each in nodes:
        holdings.set_node(each)
    plan = decide(holdings, NOW)
    took_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    world.holdings = holdings
    return world, plan, took_s, cpu_s


def events(world: World, nodes: Sequence[Node], rounds: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Gangs come and go a node at a time, nodes break and recover, taints are taken away, nodes join and leave."""
    names = [each.name for each in nodes]
    for number in range(rounds):
        name, kind = rng.choice(names), number % 5
        if kind == 0:
            yield partial(world.add_pod, f"pod-{name}", on=name, team="team-00")
        elif kind == 1:
            yield partial(world.end_pod, f"pod-{name}")
        elif kind == 2:
            yield partial(world.holdings.set_broken, name, not world.holdings.nodes[name].broken)
        elif kind == 3:
            yield partial(world.edit, name, taints=())
        else:
            yield partial(world.set_node, node(f"new-{number:06}", zone="a"))


def in_memory(count: int, rounds: int, scratch_rounds: int) -> dict[str, float]:
    """From scratch, after one event, and again with nothing new."""
    nodes, text = made(count), shares(**amounts(count))
    took, cpu = [], []
    for _ in range(scratch_rounds):
        world, plan, took_s, cpu_s = allocated(nodes, text)
        took.append(took_s)
        cpu.append(cpu_s)
    assert len(plan.changes) >= count * 8 // 10, f"only {len(plan.changes)} nodes were given out"
    world.run()
    again = world.plan()
    assert again.changes == (), "what was given out is given out again"
    taken, written = [], 0
    gc.collect()
    for happen in events(world, nodes, rounds, random.Random(1)):

        def one_event(happen: Callable[[], object] = happen) -> None:
            happen()
            world.plan()

        taken.append(milliseconds(one_event))
        written += len(world.run().changes)
    return {
        f"scratch_{count}_s": statistics.median(took),
        f"scratch_{count}_s_max": max(took),
        f"scratch_{count}_cpu_s": statistics.median(cpu),
        f"event_{count}_p50_ms": statistics.median(taken),
        f"event_{count}_p99_ms": percentile(taken, 0.99),
        f"event_{count}_max_ms": max(taken),
        f"event_{count}_nodes_written": written,
        f"again_{count}_nodes_written": len(world.plan().changes),
    }


async def at_rest(count: int, seconds: float) -> dict[str, float]:
    """The controller assigns nodes; then kubelets report, and every request that is not a read is counted."""
    core = Cluster()
    for kind in KINDS:
        core.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
    core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-system"}})
    sent: list[str] = []
    trace = Trace()
    trace.listeners.append(lambda now, client, request, code, body: sent.append(request.method))

    def connect(trace: Trace) -> Client:
        transport = InProcessTransport(core.core, "teams", Calm(random.Random(1)), trace)
        metrics = kube_metrics(CollectorRegistry())
        return Client(ClusterConfig(server="http://none"), transport=transport, metrics=metrics)

    cluster = TeamCluster(connect(Trace()), "muster-system")
    names = await cluster.add_nodes(count)
    await cluster.configure(**{f"team-{number}": "10%" for number in range(9)})
    started = time.perf_counter()
    cluster.manage(connect(trace), writes_per_s=1e6)
    owned = {f"team-{number}": count // 10 for number in range(9)}
    await cluster.until_owned(**owned)
    took_s = time.perf_counter() - started
    written = sum(method != "GET" for method in sent)
    await asyncio.sleep(1.0)
    sent.clear()
    for name in names:
        await cluster.set_ready(name, True)
    await asyncio.sleep(seconds)
    await cluster.stop()
    return {
        "controller_nodes": count,
        "controller_scratch_s": took_s,
        "controller_writes_for_all": written,
        "controller_writes_at_rest": sum(method != "GET" for method in sent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[7500, 100_000])
    parser.add_argument("--rounds", type=int, default=500, help="events, each followed by a decision")
    parser.add_argument("--scratch-rounds", type=int, default=3)
    parser.add_argument("--controller-nodes", type=int, default=500)
    parser.add_argument("--rest-s", type=float, default=5.0, help="how long to look for writes at rest")
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    figures: dict[str, float] = {"teams": TEAMS}
    goals: list[Goal] = []
    for count in arguments.nodes:
        figures |= in_memory(count, arguments.rounds, arguments.scratch_rounds)
        limit_s = {7500: 0.5, 100_000: 5.0}.get(count)
        if limit_s is not None:
            goals += [
                at_most(f"{count:,} nodes, {TEAMS} teams from scratch: s", limit_s, figures[f"scratch_{count}_s"]),
                at_most(f"{count:,} nodes, one event, p50: ms", 5.0, figures[f"event_{count}_p50_ms"]),
                at_most(f"{count:,} nodes, one event, p99: ms", 20.0, figures[f"event_{count}_p99_ms"]),
            ]
        goals.append(at_most(f"{count:,} nodes, decided again: writes", 0, figures[f"again_{count}_nodes_written"]))
    figures |= asyncio.run(at_rest(arguments.controller_nodes, arguments.rest_s))
    goals.append(at_most("the controller at rest: writes", 0, figures["controller_writes_at_rest"]))
    figures = {name: round(figure, 3) for name, figure in figures.items()}
    figures["load_average"] = round(os.getloadavg()[0], 1)
    figures["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    table = Table("", "", title="teams")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}")
    emit(Report("teams", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
