"""Counts requests by caller and shape while a log of any size is read; its memory is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final, NamedTuple

from muster.doctor.costs.growth import Sample
from muster.doctor.costs.owners import KUBELETS, Caller, Found, Owners
from muster.doctor.costs.shape import Shape, shape_of
from muster.kube.requestlog import RequestLine

CALLERS_MAX: Final = 2_000
SHAPES_MAX: Final = 200
"""Per caller. An account that asks for random things cannot fill the memory."""
INSTANCES_MAX: Final = 300_000
"""Pods or nodes that are counted one by one, over all callers and shapes."""
OPEN_WATCHES_MAX: Final = 300_000
NAMED_INSTANCES: Final = 8
NAMES_MAX: Final = 20_000
"""Names of objects are remembered for this many instances per shape, and as many names each."""
NAMES_ALL_MAX: Final = 1_000_000
WINDOWS_MAX: Final = 240
WINDOW_FIRST_S: Final = 5.0
OTHER: Final = Caller("Other", "", "callers beyond the limit")
_OTHER_SHAPE: Final = Shape("other", "requests beyond the limit", "all")
_WATCHES_EACH_MAX: Final = 1_000.0
PER_NODE_KINDS: Final = frozenset({"DaemonSet", "Kubelet"})
"""Callers with one instance on each node."""
_REPLICATED: Final = frozenset(
    {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job", "CronJob", "Pod", "Other"}
)
ON_NODES_MIN: Final = 3
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_ONCE: Final = 3
"""If a series of requests ended this many of its intervals before its instance did, it belonged to the start."""
_BURST_S: Final = 10.0
"""A series shorter than this that never happens again belonged to the start too, even if the instance is silent."""


@dataclass(slots=True)
class _Instance:
    first: float
    last: float
    calls: int = 0
    watch_s: float = 0.0


@dataclass(slots=True)
class _Count:
    calls: int = 0
    failed: int = 0
    bytes: int = 0
    sized: int = 0
    events: int = 0
    event_s: float = 0.0
    instances: dict[str, _Instance] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Windows:
    """Requests and active instances of a caller over time. Instances are bits of a number, to be small."""

    numbers: dict[str, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    active: dict[int, int] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)


class Usage(NamedTuple):
    """What one caller did with one shape of request.

    Attributes:
        caller, shape: who, what.
        instances: number of pods or nodes that exist at a time and send it, at least 1.
        nodes: number of nodes from which it came; 0 if unknown.
        calls: number of requests in the log.
        failed: requests that were answered with 429 or 5xx.
        rate: requests per second of all instances, without those at the start of an instance.
        startup: requests of one instance when it starts.
        watches: number of watches that were open at a time, on average.
        bytes_each: mean size of an answer's body, or of an event of a watch; 0 if the log has no sizes.
        names_each: different objects that one instance named.
        events_each: events per second on one watch, -1 if the log does not count them. Audit logs do not.
    """

    caller: Caller
    shape: Shape
    instances: int
    nodes: int
    calls: int
    failed: int
    rate: float
    startup: float
    watches: float
    bytes_each: float
    names_each: int
    events_each: float = -1.0


class Observed(NamedTuple):
    """All that a log shows.

    Attributes:
        usages: by caller and shape.
        seconds: time between the first and the last request.
        changes: successful writes per second, by resource with group.
        samples: per caller: requests per second against the number of its active instances, or of nodes.
        kubelets: number of kubelets that sent requests.
        dropped: requests that were counted only in total, because a limit was reached.
    """

    usages: tuple[Usage, ...]
    seconds: float
    changes: dict[str, float]
    samples: dict[Caller, tuple[Sample, ...]]
    kubelets: int
    dropped: int


def runs_per_node(caller: Caller, nodes: int) -> bool:
    """Returns whether a caller seen on this many nodes may have a pod on each node."""
    return caller.kind in PER_NODE_KINDS or (caller.kind not in _REPLICATED and nodes >= ON_NODES_MIN)


class Tally:
    """Adds requests one by one."""

    def __init__(self, owners: Owners, is_node: Callable[[str], bool] = lambda text: False) -> None:
        """Start empty.

        Args:
            owners: finds the caller of a request.
            is_node: says whether a text is the name of a node.
        """
        self._owners = owners
        self._is_node = is_node
        self._counts: dict[Caller, dict[Shape, _Count]] = {}
        self._nodes: dict[Caller, set[str]] = {}
        self._windows: dict[Caller, _Windows] = {}
        self._window_s = WINDOW_FIRST_S
        self._open: dict[str, tuple[Found, _Count, _Instance | None, float]] = {}
        self._changes: dict[str, int] = {}
        self._instances = 0
        self._tracked = 0
        self._named = 0
        self._node_entries = 0
        self._first = float("inf")
        self._last = float("-inf")
        self.dropped = 0

    def add(self, line: RequestLine) -> None:
        """Count one request."""
        found = self._owners.find(line)
        began = line.time if line.open else line.time - line.seconds
        if line.verb != "watch" or line.open:
            self._first = min(self._first, began)
        self._first = min(self._first, line.time)
        self._last = max(self._last, line.time)
        known = self._open.pop(line.id, None) if line.id and line.verb == "watch" and not line.open else None
        if known is not None:
            _, count, instance, opened = known
            self._ended(found, count, instance, line, opened)
            return
        count = self._count_of(found.caller, shape_of(line, lambda text: text == found.node or self._is_node(text)))
        instance = self._instance_of(count, found, began)
        count.calls += 1
        count.failed += line.code == 429 or line.code >= 500
        if instance is not None:
            instance.calls += 1
            instance.first, instance.last = min(instance.first, began), max(instance.last, began)
        nodes = self._nodes.setdefault(found.caller, set()) if found.caller in self._counts else set()
        if found.node and found.node not in nodes and self._node_entries < INSTANCES_MAX:
            nodes.add(found.node)
            self._node_entries += 1
        self._name(count, found, line)
        if line.verb in WRITES and 200 <= line.code < 300:
            resource = f"{line.resource}.{line.group}" if line.group else line.resource
            if resource in self._changes or len(self._changes) < CALLERS_MAX:
                self._changes[resource] = self._changes.get(resource, 0) + 1
        if line.open:
            if line.id and len(self._open) < OPEN_WATCHES_MAX:
                self._open[line.id] = (found, count, instance, began)
        elif line.verb == "watch":
            self._ended(found, count, instance, line, began)
        elif line.bytes >= 0:
            count.bytes += line.bytes
            count.sized += 1
        self._sample(found, began, line.time)

    def finish(self) -> Observed:
        """Close what is still open at the end of the log, and return the result. Call it once."""
        for found, count, instance, opened in self._open.values():
            self._watched(count, instance, opened, self._last)
            self._seen(found, self._last)
        self._open.clear()
        seconds = max(self._last - self._first, 0.0)
        usages = [
            self._usage(caller, shape, count)
            for caller, shapes in self._counts.items()
            for shape, count in shapes.items()
        ]
        usages.sort(key=lambda usage: (-usage.calls, usage.caller, usage.shape))
        per_second = 1 / seconds if seconds > 0 else 0.0
        return Observed(
            usages=tuple(usages),
            seconds=seconds,
            changes={resource: number * per_second for resource, number in sorted(self._changes.items())},
            samples={caller: self._samples(caller, windows) for caller, windows in self._windows.items()},
            kubelets=len(self._nodes.get(KUBELETS, ())),
            dropped=self.dropped,
        )

    def _count_of(self, caller: Caller, shape: Shape) -> _Count:
        shapes = self._counts.get(caller)
        if shapes is None:
            if len(self._counts) >= CALLERS_MAX:
                self.dropped += 1
                caller, shape = OTHER, _OTHER_SHAPE
            shapes = self._counts.setdefault(caller, {})
        count = shapes.get(shape)
        if count is None:
            if len(shapes) >= SHAPES_MAX:
                self.dropped += 1
                shape = _OTHER_SHAPE
            count = shapes.setdefault(shape, _Count())
        return count

    def _instance_of(self, count: _Count, found: Found, began: float) -> _Instance | None:
        instance = count.instances.get(found.instance)
        if instance is None and self._instances < INSTANCES_MAX:
            self._instances += 1
            instance = count.instances[found.instance] = _Instance(began, began)
        return instance

    def _name(self, count: _Count, found: Found, line: RequestLine) -> None:
        if line.name and line.verb == "get":
            if found.instance not in count.names and len(count.names) >= NAMED_INSTANCES:
                return
            names = count.names.setdefault(found.instance, set())
            name = f"{line.namespace}/{line.name}"
            if name not in names and len(names) < NAMES_MAX and self._named < NAMES_ALL_MAX:
                names.add(name)
                self._named += 1

    def _ended(self, found: Found, count: _Count, instance: _Instance | None, line: RequestLine, opened: float) -> None:
        self._watched(count, instance, opened, line.time)
        self._seen(found, line.time)
        if line.events >= 0:
            count.events += line.events
            count.event_s += max(line.time - opened, 0.0)
            if line.bytes >= 0:
                count.bytes += line.bytes
                count.sized += line.events

    @staticmethod
    def _watched(count: _Count, instance: _Instance | None, opened: float, closed: float) -> None:
        seconds = max(closed - opened, 0.0)
        if instance is not None:
            instance.watch_s += seconds

    def _usage(self, caller: Caller, shape: Shape, count: _Count) -> Usage:
        windows = self._windows.get(caller, _Windows())
        sent = max(len(count.instances), 1)
        series = [self._series(instance, windows.ends.get(name)) for name, instance in count.instances.items()]
        watching = [
            min(instance.watch_s / max(windows.ends.get(name, self._last) - instance.first, 1e-3), _WATCHES_EACH_MAX)
            for name, instance in count.instances.items()
        ]
        nodes = len(self._nodes.get(caller, ()))
        at_a_time = max(nodes, 1) if caller.kind in PER_NODE_KINDS and nodes else self._at_a_time(caller, windows)
        instances = max(min(sent, at_a_time), 1)
        return Usage(
            caller=caller,
            shape=shape,
            instances=instances,
            nodes=nodes,
            calls=count.calls,
            failed=count.failed,
            rate=fmean(rate for rate, _ in series) * instances if series else 0.0,
            startup=median(start for _, start in series) if series else 0.0,
            watches=fmean(watching) * instances if shape.verb == "watch" and watching else 0.0,
            bytes_each=count.bytes / count.sized if count.sized else 0.0,
            names_each=max((len(names) for names in count.names.values()), default=0),
            events_each=count.events / count.event_s if count.event_s > 0 else -1.0,
        )

    def _series(self, instance: _Instance, end: float | None) -> tuple[float, float]:
        """Requests per second of one instance in steady state, and the number of those at its start."""
        span = instance.last - instance.first
        if instance.calls < 2 or span <= 0:
            return 0.0, float(instance.calls)
        interval = span / (instance.calls - 1)
        silent = (self._last if span < _BURST_S or end is None else end) - instance.last
        if silent > max(_ONCE * interval, span):
            return 0.0, float(instance.calls)
        return 1 / interval, 1.0

    def _seen(self, found: Found, at: float) -> None:
        windows = self._windows.get(found.caller)
        if windows is not None and found.instance in windows.ends:
            windows.ends[found.instance] = max(windows.ends[found.instance], at)

    def _sample(self, found: Found, began: float, ended: float) -> None:
        windows = self._windows.get(found.caller)
        if windows is None:
            if len(self._windows) >= CALLERS_MAX:
                return
            windows = self._windows[found.caller] = _Windows()
        number = windows.numbers.get(found.instance)
        if number is None and self._tracked < INSTANCES_MAX:
            self._tracked += 1
            number = windows.numbers[found.instance] = len(windows.numbers)
            windows.ends[found.instance] = ended
        self._seen(found, ended)
        at = int(began // self._window_s)
        windows.counts[at] = windows.counts.get(at, 0) + 1
        if number is not None:
            windows.active[at] = windows.active.get(at, 0) | 1 << number
        if len(windows.counts) > WINDOWS_MAX:
            self._widen()

    def _widen(self) -> None:
        """Double the length of all windows."""
        self._window_s *= 2
        for windows in self._windows.values():
            windows.counts, counts = {}, windows.counts
            windows.active, active = {}, windows.active
            for at, number in counts.items():
                windows.counts[at // 2] = windows.counts.get(at // 2, 0) + number
            for at, bits in active.items():
                windows.active[at // 2] = windows.active.get(at // 2, 0) | bits

    def _samples(self, caller: Caller, windows: _Windows) -> tuple[Sample, ...]:
        """Rates in windows that hold several requests of each instance, so that an instance is not missed.

        If the caller does not run on every node, the number of nodes is that of the kubelets which were active.
        """
        counts, active, length = self._widened(caller, windows)
        if not runs_per_node(caller, len(self._nodes.get(caller, ()))):
            active = self._windows[KUBELETS].active if KUBELETS in self._windows else {}
            short = self._window_s
            while short < length:
                short *= 2
                active = _merged(active, lambda left, right: left | right)
        inner = sorted(counts)[1:-1]  # the first and the last window are not full
        return tuple(Sample(active[at].bit_count(), counts[at] / length) for at in inner if at in active)

    def _at_a_time(self, caller: Caller, windows: _Windows) -> int:
        """The largest number of instances that were active at a time."""
        _, active, _ = self._widened(caller, windows)
        return max((bits.bit_count() for bits in active.values()), default=1)

    def _widened(self, caller: Caller, windows: _Windows) -> tuple[dict[int, int], dict[int, int], float]:
        """Windows of at least two intervals of an instance: requests, active instances, length in seconds."""
        rates = [
            self._series(instance, windows.ends.get(name))[0]
            for count in self._counts.get(caller, {}).values()
            for name, instance in count.instances.items()
        ]
        busy = [rate for rate in rates if rate > 0]
        least = 2 / median(busy) if busy else self._last - self._first
        counts, active, length = windows.counts, windows.active, self._window_s
        while length < least:
            length *= 2
            counts = _merged(counts, lambda left, right: left + right)
            active = _merged(active, lambda left, right: left | right)
        return counts, active, length


def _merged(windows: dict[int, int], join: Callable[[int, int], int]) -> dict[int, int]:
    merged: dict[int, int] = {}
    for at, value in windows.items():
        merged[at // 2] = join(merged[at // 2], value) if at // 2 in merged else value
    return merged
