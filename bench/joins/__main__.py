"""What a join of many nodes does to the API server, all at once and at our pace.

A real control plane with simulated nodes. Once a node is open to pods, the DaemonSet controller makes its
pods and kube-scheduler binds them. Each agent then lists nodes and the pods of its node over its own
connection, as agents do when they start. Meanwhile another client reads and writes small objects at a steady
pace. The bench measures how long that takes, and how often the API server refused a request (429). Agents
and this client are processes of their own, and service accounts: an administrator is exempt from
the API server's priority and fairness.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from statistics import median

from bench.joins.side import AT_ONCE, PACED, Outcome, join
from bench.plan import percentile
from bench.report import Report, console, emit, spread
from bench.running import interrupted

SIDES = (AT_ONCE, PACED)


def figures_of(name: str, outcome: Outcome) -> Iterator[tuple[str, float]]:
    """Yield the figures of one join."""
    probes = outcome.probes
    yield f"{name}_join_s", outcome.join_s
    yield f"{name}_probe_p50_ms", median(probes.taken_ms)
    yield f"{name}_probe_p99_ms", percentile(probes.taken_ms, 0.99)
    yield f"{name}_probe_max_ms", max(probes.taken_ms)
    yield f"{name}_probe_refused", probes.refused
    yield f"{name}_probe_failed", probes.failed
    yield f"{name}_agent_p50_ms", median(outcome.agents_ms)
    yield f"{name}_agent_p99_ms", percentile(outcome.agents_ms, 0.99)
    yield f"{name}_apiserver_p99_ms", outcome.apiserver_p99_ms
    yield f"{name}_apiserver_429", outcome.apiserver_refused
    yield f"{name}_apiserver_cpu_s", outcome.apiserver_cpu_s
    yield f"{name}_agents_cpu_s", outcome.agents_cpu_s
    yield f"{name}_nodes_cpu_s", outcome.nodes_cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--daemons", type=int, default=4, help="DaemonSets")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", default=",".join(SIDES), help="which of them, separated by commas")
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    out = console()
    taken: dict[str, list[float]] = {}
    loads: list[float] = []

    async def measure() -> None:
        for _ in range(arguments.repetitions):
            for name in arguments.side.split(","):
                outcome = await join(name, arguments.nodes, arguments.daemons)
                loads.append(os.getloadavg()[0])
                found = dict(figures_of(name, outcome))
                for figure, value in found.items():
                    taken.setdefault(figure, []).append(value)
                out.print("  ".join(f"{figure} {value:,.0f}" for figure, value in found.items()))

    interrupted("joins", out, measure)
    figures: dict[str, float] = {
        "nodes": arguments.nodes,
        "daemons": arguments.daemons,
        "repetitions": min(map(len, taken.values()), default=0),
    }
    for figure, values in taken.items():
        spread(figure, values, figures)
    spread("load_average", loads, figures)
    table = Table("", "median", "least", "most", title=f"{arguments.nodes} nodes join")
    for figure in (*taken, "load_average"):
        if figure in figures:
            table.add_row(figure, *(f"{figures[figure + suffix]:,.1f}" for suffix in ("", "_min", "_max")))
    emit(Report("joins", figures), arguments.json, [table])


if __name__ == "__main__":
    main()
