"""Machines of a run and their demand: drawn from files of a real cluster, or from a small model."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import msgspec

from muster.sim.replay.job import Job, NodeShape, Shape
from muster.sim.replay.openb import read_nodes
from muster.sim.replay.table import BadTrace
from muster.sim.replay.traces import read_trace

POOL_MIN = 4
"""The smallest number of machines of one kind for a pool."""
_GPUS_PER_NODE = 8
_OWN_NODES = (NodeShape("", 8, 96_000, 1_048_576, "X8"), NodeShape("", 4, 64_000, 524_288, "X4"))


class Source(msgspec.Struct, frozen=True):
    """The source of a run: the machines of a cluster, and its tasks in the order in which they came."""

    nodes: tuple[NodeShape, ...]
    tasks: tuple[Job, ...]

    @property
    def kinds(self) -> dict[str, list[NodeShape]]:
        """Machines with GPUs, by model; only models with enough machines for a pool."""
        found: defaultdict[str, list[NodeShape]] = defaultdict(list)
        for node in self.nodes:
            if node.gpus:
                found[node.model].append(node)
        return {model: found[model] for model in sorted(found) if len(found[model]) >= POOL_MIN}


def read_source(nodes: Path, pods: Path) -> Source:
    """Read a node list of OpenB's form and a trace. Raises BadTrace, also where no pool can be made of it."""
    source = Source(tuple(read_nodes(nodes)), tuple(read_trace(pods, _GPUS_PER_NODE).jobs))
    if not source.kinds:
        raise BadTrace(nodes, 0, f"has no GPU model with {POOL_MIN} nodes: add some")
    if not source.tasks:
        raise BadTrace(pods, 0, "has no tasks")
    return source


def own_source() -> Source:
    """A small model: two kinds of machines, tasks of a part of one, a few of several GPUs."""
    rng = random.Random("machines")
    nodes = [
        msgspec.structs.replace(kind, name=f"{kind.model}-{number}") for kind in _OWN_NODES for number in range(24)
    ]
    tasks = []
    for number in range(400):
        gpus = rng.choice((1, 1, 1, 2, 4))
        shape = Shape(gpus, cpu_milli=rng.randrange(500, 8000 * gpus), memory_mib=rng.randrange(512, 65536 * gpus))
        priority = rng.choice((0, 0, 1000))
        tasks.append(Job(f"task-{number}", number, rng.lognormvariate(6, 1.5), 1, shape, gang=False, priority=priority))
    return Source(tuple(nodes), tuple(tasks))


def smallest(nodes: list[NodeShape]) -> NodeShape:
    """Returns the resources that each of the machines has at least."""
    return NodeShape(
        "",
        min(node.gpus for node in nodes),
        min(node.cpu_milli for node in nodes),
        min(node.memory_mib for node in nodes),
        nodes[0].model,
    )


def capacity_of(node: NodeShape) -> dict[str, str]:
    """Returns the capacity that a machine's kubelet reports."""
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": "110"}
    return {**amounts, "nvidia.com/gpu": str(node.gpus)} if node.gpus else amounts
