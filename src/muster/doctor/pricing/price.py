"""The price of a DaemonSet: the recorded requests of its pods, times the planned nodes and objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.api.finding import Growth
from muster.doctor.costs.budget import DEFAULT, Excess, excesses
from muster.doctor.costs.cost import WATCH_BYTES, Cost, Line, Population, project, total, work
from muster.doctor.costs.growth import Sample, fit
from muster.doctor.costs.tally import Usage


class Plan(NamedTuple):
    """The planned cluster.

    Attributes:
        nodes: number of nodes, each with a pod of the DaemonSet.
        numbers: planned numbers of objects, by resource such as `pods`; others follow from the nodes.
    """

    nodes: int
    numbers: Mapping[str, float] = {}


class Start(NamedTuple):
    """What all pods cost if they start together, as after a restart of the API server or of the cluster.

    Attributes:
        requests: number of requests.
        objects: objects in the answers.
        bytes: size of the answers.
    """

    requests: float
    objects: float
    bytes: float


class Price(NamedTuple):
    """The price.

    Attributes:
        recorded: the cost while it was recorded, with `pods` pods on a cluster of `nodes` nodes.
        planned: the cost with a pod on each planned node.
        start: what a start of all pods costs.
        watch_memory_bytes: memory of the API server for its watches, upper estimate.
        growth: how the most expensive requests grow.
        lines: by shape of request, the most expensive one first.
        over: parts above the budget.
        cpu_cores: processor use of the API server, None if it was not calibrated.
    """

    recorded: Cost
    planned: Cost
    start: Start
    watch_memory_bytes: float
    growth: Growth
    lines: tuple[Line, ...]
    over: tuple[Excess, ...]
    pods: int
    nodes: int
    cpu_cores: float | None = None


class NothingRecorded(Exception):
    """The records hold no request of the DaemonSet."""


def price(
    usages: Sequence[Usage],
    samples: Sequence[Sample],
    recorded: Population,
    plan: Plan,
    budget: Cost = DEFAULT,
    *,
    cpu_cores: float | None = None,
) -> Price:
    """Compute the price.

    Args:
        usages: requests of the DaemonSet's pods.
        samples: its requests per second against its number of pods.
        recorded: the cluster in which they were recorded.
        plan: the planned cluster.
        budget: limits for the planned cost.
        cpu_cores: processor use of the API server that its pods caused while they were recorded.

    Raises:
        NothingRecorded: there are no usages.
    """
    if not usages:
        raise NothingRecorded
    planned = recorded.at(plan.nodes, plan.numbers)
    fitted = fit(samples)
    lines = [project(usage, recorded, planned, fitted, instances=float(plan.nodes)) for usage in usages]
    lines.sort(key=lambda line: -work(line.planned))
    before, after = total(line.today for line in lines), total(line.planned for line in lines)
    return Price(
        recorded=before,
        planned=after,
        start=_start(usages, recorded, planned),
        watch_memory_bytes=after.watches * WATCH_BYTES,
        growth=lines[0].growth,
        lines=tuple(lines),
        over=tuple(excesses(after, budget)),
        pods=max(usage.instances for usage in usages),
        nodes=plan.nodes,
        cpu_cores=cpu_cores * work(after) / work(before) if cpu_cores is not None and work(before) > 0 else None,
    )


def _start(usages: Sequence[Usage], recorded: Population, planned: Population) -> Start:
    """Every pod sends its first requests, at the planned sizes of answers."""
    requests = objects = size = 0.0
    for usage in usages:
        once = usage._replace(watches=0.0, instances=1)
        cost = project(once._replace(rate=usage.startup), recorded, planned, None, instances=planned.nodes).planned
        requests += usage.startup * planned.nodes
        objects += cost.objects
        size += cost.list_bytes
    return Start(requests, objects, size)
