"""The cost of requests for the control plane, today and at another number of nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from muster.api.finding import Growth
from muster.doctor.costs.growth import Fit, growth_of, words
from muster.doctor.costs.owners import Caller
from muster.doctor.costs.tally import PER_NODE_KINDS, WRITES, Usage, runs_per_node

GROWS: Final = frozenset(
    {
        "nodes",
        "pods",
        "events",
        "events.events.k8s.io",
        "endpoints",
        "endpointslices.discovery.k8s.io",
        "leases.coordination.k8s.io",
        "csinodes.storage.k8s.io",
        "volumeattachments.storage.k8s.io",
        "persistentvolumes",
        "persistentvolumeclaims",
        "replicasets.apps",
        "jobs.batch",
        "resourceslices.resource.k8s.io",
        "resourceclaims.resource.k8s.io",
        "certificatesigningrequests.certificates.k8s.io",
        "podmetrics.metrics.k8s.io",
        "nodemetrics.metrics.k8s.io",
    }
)
"""Resources whose number of objects grows with the number of nodes. Of others, see `Planned.grows`."""
FIXED: Final = frozenset(
    {
        "namespaces",
        "customresourcedefinitions.apiextensions.k8s.io",
        "apiservices.apiregistration.k8s.io",
        "storageclasses.storage.k8s.io",
        "csidrivers.storage.k8s.io",
        "runtimeclasses.node.k8s.io",
        "priorityclasses.scheduling.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
        "daemonsets.apps",
    }
)
"""Resources whose number of objects does not depend on the number of nodes, even if it is larger."""
OBJECT_BYTES: Final = 2048.0
"""Size of an object if neither the log nor the cluster shows it."""
WATCH_BYTES: Final = 100 * 1024
"""Upper estimate of the API server's memory for a watch (kubernetes/kubernetes#117777: 50 to 100 KiB)."""


_VISITS_MIN: Final = 3


class Objects(NamedTuple):
    """Objects of a resource: their number, mean size in bytes (0 if unknown), and changes per second of all of them."""

    number: float
    bytes_each: float = 0.0
    changes: float = 0.0


class Population(NamedTuple):
    """What exists in the cluster, and on how many nodes."""

    nodes: float
    objects: Mapping[str, Objects]

    def of(self, resource: str) -> Objects:
        """The objects of a resource, none if unknown."""
        return self.objects.get(resource, Objects(0.0))

    def grows(self, resource: str) -> bool:
        """Returns whether the number of objects grows with the nodes.

        For resources that are neither in GROWS nor in FIXED, this is so if there is at least about one for each node.
        With fewer than five nodes, such a count says nothing.
        """
        if resource in GROWS or resource in FIXED:
            return resource in GROWS
        return self.nodes >= 5 and self.of(resource).number >= 0.9 * self.nodes

    def at(self, nodes: float, counts: Mapping[str, float] | None = None) -> Population:
        """The same cluster with another number of nodes, and for some resources with given numbers of objects."""
        counts = counts or {}
        factor = nodes / max(self.nodes, 1.0)
        planned = {}
        for resource in {*self.objects, *counts, "nodes"}:
            now = self.of(resource)
            by = factor if self.grows(resource) else 1.0
            count = now.number * by
            if resource == "nodes":
                count = nodes
            if resource in counts:
                count = counts[resource]
                by = count / now.number if now.number else by
            planned[resource] = Objects(count, now.bytes_each, now.changes * by)
        return Population(nodes, planned)


class Cost(NamedTuple):
    """Cost of a caller for the control plane.

    Attributes:
        requests: requests per second, without the watches that stay open.
        objects: objects per second in answers of lists.
        list_bytes: bytes per second in answers of lists and gets.
        watches: open watches.
        events: watch events per second that are delivered to it.
        event_bytes: bytes per second of these events.
        etcd_reads: reads per second that must see the most recent state (resourceVersion ""), which involves etcd.
        writes: writes per second.
    """

    requests: float = 0.0
    objects: float = 0.0
    list_bytes: float = 0.0
    watches: float = 0.0
    events: float = 0.0
    event_bytes: float = 0.0
    etcd_reads: float = 0.0
    writes: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """The sum."""
        return Cost(*(left + right for left, right in zip(self, other, strict=True)))

    def times(self, factor: float) -> Cost:
        """A multiple."""
        return Cost(*(each * factor for each in self))


UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("requests", "requests/s"),
    "objects": ("objects in lists", "objects/s"),
    "list_bytes": ("bytes of lists and gets", "bytes/s"),
    "watches": ("open watches", ""),
    "events": ("watch events", "events/s"),
    "event_bytes": ("bytes of watch events", "bytes/s"),
    "etcd_reads": ("reads of the most recent state", "reads/s"),
    "writes": ("writes", "writes/s"),
}
"""Title and unit of each part of a cost."""


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    result = Cost()
    for each in costs:
        result = result.plus(each)
    return result


def answered(usage: Usage, population: Population) -> float:
    """Objects in one answer of a list, or in the state that one change is selected from.

    If the size of answers is not known, a list with a selector counts like the whole collection: the API server must
    look at each object to select some.
    """
    objects = population.of(usage.shape.objects)
    if usage.shape.scope == "one" or usage.shape.selector == "one":
        return 1.0
    if usage.shape.selector == "node":
        return objects.number / max(population.nodes, 1.0)
    known = usage.bytes_each / (objects.bytes_each or OBJECT_BYTES)
    if usage.shape.scope == "all":
        whole = usage.shape.selector == "" or not known
        return objects.number if whole else min(known, objects.number or known)
    return max(known, float(usage.instances) if lists_peers(usage) else 1.0)


def lists_peers(usage: Usage) -> bool:
    """Returns whether an answer holds all pods of the DaemonSet that asks, because they are in its namespace."""
    return usage.caller.kind == "DaemonSet" and usage.shape.scope == "own" and usage.shape.objects == "pods"


def cost_of(usage: Usage, recorded: Population, planned: Population, instances: float, rate_each: float) -> Cost:
    """The cost of one caller's requests of one shape.

    Args:
        usage: what was recorded.
        recorded: the cluster in which it was recorded.
        planned: the cluster for which the cost is computed; may be the same one.
        instances: number of pods or nodes that send them there.
        rate_each: requests per second of one instance there.
    """
    shape = usage.shape
    rate = rate_each * instances
    state = _state(usage, recorded, planned)
    if shape.verb == "watch":
        return _watch_cost(usage, planned.of(shape.objects), state, rate, instances)
    listed = rate * state.size if shape.verb == "list" else 0.0
    body = usage.bytes_each or state.each
    return Cost(
        requests=rate,
        objects=listed,
        list_bytes=listed * state.each if shape.verb == "list" else rate * body if shape.verb == "get" else 0.0,
        etcd_reads=rate if shape.verb in ("get", "list") and shape.version == "" else 0.0,
        writes=rate if shape.verb in WRITES else 0.0,
    )


class _State(NamedTuple):
    """Objects that an answer holds: when recorded, in the planned cluster, and the bytes of one of them."""

    before: float
    size: float
    each: float


def _state(usage: Usage, recorded: Population, planned: Population) -> _State:
    shape = usage.shape
    before = answered(usage, recorded)
    now, then = recorded.of(shape.objects), planned.of(shape.objects)
    size = before
    if shape.selector == "node":
        old, new = now.number / max(recorded.nodes, 1.0), then.number / max(planned.nodes, 1.0)
        size = before * new / old if old else new
    elif shape.scope == "all" and shape.selector != "one":
        size = before * then.number / now.number if now.number else max(before, then.number)
    elif lists_peers(usage) and shape.selector != "one":
        size = before * planned.nodes / max(recorded.nodes, 1.0)
    measured = usage.bytes_each / before if before and shape.verb == "list" else 0.0
    return _State(before, size, measured or then.bytes_each or OBJECT_BYTES)


def _watch_cost(usage: Usage, objects: Objects, state: _State, rate: float, instances: float) -> Cost:
    watches = usage.watches / usage.instances * instances
    if usage.events_each >= 0:
        events = watches * usage.events_each * (state.size / state.before if state.before else 1.0)
        each = usage.bytes_each or state.each
    else:
        share = state.size / objects.number if objects.number else float(not usage.shape.selector)
        events = watches * objects.changes * min(share, 1.0)
        each = state.each
    first = rate * state.size if usage.shape.initial or usage.shape.version != "N" else 0.0
    return Cost(
        requests=rate,
        objects=first,
        list_bytes=first * state.each,
        watches=watches,
        events=events,
        event_bytes=events * each,
    )


class Scaling(NamedTuple):
    """How a caller's number of instances and its requests grow with the nodes, and why this is believed.

    Attributes:
        instances: of the number of its pods.
        requests: of the requests of one pod.
        reason: evidence in one sentence.
        base: number of nodes or pods for which the requests of one pod were recorded.
    """

    instances: Growth
    requests: Growth
    reason: str
    base: float


def scaling_of(usage: Usage, population: Population, fitted: Fit | None) -> Scaling:
    """Decide how the requests of a usage grow.

    A caller of a DaemonSet has one pod on each node. Whether the requests of one pod grow too follows from the samples.
    Without samples of different sizes, a pod that names as many objects as there are nodes grows with the nodes.
    """
    everywhere = usage.nodes >= 0.8 * population.nodes
    per_node = usage.caller.kind in PER_NODE_KINDS or (everywhere and runs_per_node(usage.caller, usage.nodes))
    instances = Growth.PER_NODE if per_node else Growth.CONSTANT
    if fitted is not None and fitted.growth is not None and fitted.growth.power >= instances.power:
        extra = growth_of(fitted.growth.power - instances.power)
        counted = "pods" if per_node else "nodes"
        reason = f"fitted to different numbers of {counted}: {words(fitted.growth)}"
        return Scaling(instances, extra, reason, usage.instances if per_node else population.nodes)
    if per_node and _visits_all(usage, population):
        reason = f"one pod reads {usage.names_each} different objects, one after the other"
        return Scaling(instances, Growth.PER_NODE, reason, population.nodes)
    if per_node:
        return Scaling(instances, Growth.CONSTANT, "it runs on every node", population.nodes)
    why = fitted.reason if fitted is not None and fitted.reason else "there are no samples"
    return Scaling(instances, Growth.CONSTANT, f"taken as constant, because {why}", population.nodes)


def _visits_all(usage: Usage, population: Population) -> bool:
    """Returns whether one pod reads so many objects by name that their number must grow with the nodes.

    It reads nearly all of them, or about one of each node. A pod that reads the objects of its own node reads no more
    than a node's share of them.
    """
    visits, shape = usage.names_each, usage.shape
    if shape.verb != "get" or visits < _VISITS_MIN or not population.grows(shape.objects):
        return False
    stored = population.of(shape.objects).number
    share = stored / max(population.nodes, 1.0)
    return visits >= 0.8 * (stored or population.nodes) or visits >= max(0.8 * population.nodes, 3 * share)


class Line(NamedTuple):
    """The cost of one usage in two sizes of the cluster.

    Attributes:
        usage: what was recorded.
        scaling: how its requests grow.
        growth: how its most expensive part grows.
        today, planned: the costs.
    """

    usage: Usage
    scaling: Scaling
    growth: Growth
    today: Cost
    planned: Cost


def project(
    usage: Usage, now: Population, planned: Population, fitted: Fit | None, *, instances: float | None = None
) -> Line:
    """The cost of one usage where it was recorded and in the planned cluster.

    Args:
        usage: what was recorded.
        now: the cluster in which it was recorded.
        planned: the planned cluster.
        fitted: how the caller's requests grow, if there are samples.
        instances: planned number of pods; by default they grow as `scaling_of` says.
    """
    scaling = scaling_of(usage, now, fitted)
    factor = planned.nodes / max(now.nodes, 1.0)
    each = usage.rate / usage.instances
    pods = usage.instances * factor**scaling.instances.power if instances is None else instances
    grown = each * (planned.nodes / max(scaling.base, 1.0)) ** scaling.requests.power
    today = cost_of(usage, now, now, usage.instances, each)
    return Line(usage, scaling, growth_of_work(usage, now, scaling), today, cost_of(usage, now, planned, pods, grown))


def growth_of_work(usage: Usage, population: Population, scaling: Scaling) -> Growth:
    """How the work of a usage grows: its requests, times the objects in each answer or the events of each watch."""
    power = scaling.instances.power + scaling.requests.power
    shape = usage.shape
    if shape.verb in ("list", "watch") and shape.selector in ("", "some"):
        power += (shape.scope == "all" and population.grows(shape.objects)) or lists_peers(usage)
    return growth_of(power)


class CallerCost(NamedTuple):
    """The cost of one caller.

    Attributes:
        caller: who.
        lines: its usages, the most expensive one at the planned size first.
        today, planned: the sums.
        growth: that of the most expensive usage.
    """

    caller: Caller
    lines: tuple[Line, ...]
    today: Cost
    planned: Cost
    growth: Growth


def work(cost: Cost) -> float:
    """A rough order of costs: requests, objects and events that the API server handles per second."""
    return cost.requests + cost.objects + cost.events + cost.writes + cost.watches * 0.01


def by_caller(
    usages: Iterable[Usage], now: Population, planned: Population, fits: Mapping[Caller, Fit]
) -> list[CallerCost]:
    """The costs of all callers, the most expensive one at the planned size first."""
    lines: dict[Caller, list[Line]] = {}
    for usage in usages:
        lines.setdefault(usage.caller, []).append(project(usage, now, planned, fits.get(usage.caller)))
    result = []
    for caller, own in lines.items():
        own.sort(key=lambda line: -work(line.planned))
        result.append(
            CallerCost(
                caller=caller,
                lines=tuple(own),
                today=total(line.today for line in own),
                planned=total(line.planned for line in own),
                growth=own[0].growth,
            )
        )
    result.sort(key=lambda each: (-work(each.planned), each.caller))
    return result
