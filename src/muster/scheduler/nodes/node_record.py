"""Nodes with their properties and usage, and the index of node classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from muster.api.names import LABEL_POOL, TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.api.trust import Doubt, Identity
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.resources import Amounts, allocatable
from muster.kube.objects.taints import HARD_EFFECTS
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.node_class import NEEDS_NONE, NodeClass
from muster.scheduler.nodes.pools import Pool, pool_of
from muster.scheduler.pods.pod_class import HostPort, PodClass
from muster.scheduler.pods.resources import WHOLE, WHOLE_PARTS

NOTHING: dict[str, int] = {}
CLOSING = frozenset({TAINT_PREFLIGHT, TAINT_QUARANTINE})
"""Taints of nodes that are unusable now, even for pods that tolerate them."""
NO_LABELS: dict[str, str] = {}
UNUSED_PORTS: Counter[HostPort] = Counter()


class NodeRecord:
    """A node with its properties and usage. Only `NodeTable` changes it.

    Attributes:
        used: resources of unfinished pods and reserved slots.
        foreign_used: the part of `used` that belongs to pods of other schedulers.
        fully_held: reserved slots of unknown size, because no pod of their gang exists. Nothing else fits then.
        judged: its class in the index `judged_by`. It is valid until the node object or `foreign_used` changes.
        stale: whether its free room without gangs may have changed since it entered its `empty_bucket`.
        identity: the node identity its test must match; None if it needs no test.
        gpus, doubt, tested_within_h: state of its tests (trust.py).
        closed: its taints admit only tests.
        arriving: entries of `holds` whose pods are being bound.
    """

    __slots__ = (
        "allocatable", "arriving", "bucket", "closed", "doubt", "empty_bucket", "foreign_used", "fully_held", "gpus",
        "holds", "identity", "judged", "judged_by", "labels", "leaving", "name", "node_class", "pods", "ports",
        "problem", "stale", "taints", "tested_within_h", "uid", "unschedulable", "used",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = ""
        self.labels: dict[str, str] = {}
        self.taints: tuple[Taint, ...] = ()
        self.unschedulable = False
        self.leaving = False
        self.problem = "does not exist"
        self.allocatable: dict[str, int] = NOTHING
        self.used: dict[str, int] = NOTHING
        self.foreign_used: dict[str, int] = NOTHING
        self.ports: Counter[HostPort] = UNUSED_PORTS
        self.pods: set[str] = set()
        self.holds: dict[tuple[str, int], PodClass | None] = {}
        self.arriving: set[tuple[str, int]] = set()
        self.fully_held = 0
        self.node_class: NodeClass | None = None
        self.judged: NodeClass | None = None
        self.judged_by: NodeClasses | None = None
        self.stale = True
        self.bucket: Bucket | None = None
        self.empty_bucket: Bucket | None = None
        self.gpus = False
        self.identity: Identity | None = None
        self.doubt = Doubt.NONE
        self.tested_within_h = NEEDS_NONE
        self.closed = False

    def update(self, node: Node) -> None:
        """Update from the node object."""
        self.uid = node.uid
        self.labels = node.metadata.labels
        self.taints = tuple(sorted(node.spec.taints, key=lambda t: (t.key, t.value, t.effect)))
        self.closed = any(taint.key in CLOSING and taint.effect in HARD_EFFECTS for taint in self.taints)
        self.unschedulable = node.spec.unschedulable
        self.problem = node_problem(node)
        self.allocatable = {**allocatable(node), WHOLE: WHOLE_PARTS}
        self.judged = None
        self.stale = True

    @property
    def untouched(self) -> bool:
        """Whether the node has neither pods nor reserved slots."""
        return not (self.fully_held or self.ports or (self.used and any(self.used.values())))

    def free(self) -> dict[str, int]:
        """Return the free amounts; empty if a slot of unknown size is reserved. The caller may change the result."""
        if self.fully_held:
            return {}
        return self.free_without_holds()

    def free_for_new(self) -> dict[str, int]:
        """Return the free amounts for pods that may come now.

        If only tests may run on the node, reserved slots do not count. Otherwise the gang would wait for the test,
        and the test for the gang's room. Slots whose pods are being bound do count, because these pods may still
        arrive.
        """
        if not self.holds or not (self.doubt or self.closed):
            return self.free()
        free = self.free_without_holds()
        for key, cls in self.holds.items():
            for resource, value in cls.request.items() if cls is not None and key not in self.arriving else ():
                free[resource] = free.get(resource, 0) + value
        return free

    def free_without_holds(self) -> dict[str, int]:
        """Return the free amounts without counting reserved slots of unknown size."""
        used = self.used
        if not used:
            return self.allocatable.copy()
        return {resource: value - used.get(resource, 0) for resource, value in self.allocatable.items()}

    def free_when_empty(self) -> dict[str, int]:
        """Return the free amounts without any gang's pods or reserved slots."""
        used = self.foreign_used
        if not used:
            return self.allocatable.copy()
        return {resource: value - used.get(resource, 0) for resource, value in self.allocatable.items()}

    def take(self, request: Amounts, ports: Iterable[HostPort], *, foreign: bool, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) the request of a pod."""
        self.used = _counted(self.used, request, sign)
        if foreign:
            self.foreign_used = _counted(self.foreign_used, request, sign)
            self.judged = None
            self.stale = True
        for port in ports:
            if self.ports is UNUSED_PORTS:
                self.ports = Counter()
            self.ports[port] += sign
            if self.ports[port] <= 0:
                del self.ports[port]


def _counted(used: dict[str, int], request: Amounts, sign: int) -> dict[str, int]:
    """Add the request to `used` and return that; a new one if the node was never used."""
    if used is NOTHING:
        used = {}
    for resource, value in request.items():
        used[resource] = used.get(resource, 0) + sign * value
    return used


def node_problem(node: Node) -> str:
    """Return why no new pods may start on the node; "" if they may.

    The node lifecycle controller turns conditions into taints. Ready and NetworkUnavailable are also read directly,
    for clusters without it. Pressure conditions count only through taints, which pods may tolerate.
    """
    if node.metadata.deletion_timestamp is not None:
        return "is being deleted"
    conditions = {condition.type: condition.status for condition in node.status.conditions}
    if conditions.get("Ready") != "True":
        return "is not ready"
    if conditions.get("NetworkUnavailable") == "True":
        return "has no network"
    return ""


class NodeClasses:
    """Index of node classes.

    Args:
        label_keys: the labels that pods read.
        numbers: source of class numbers, shared with replaced indexes: so a bucket of an old class never has the key
            of a new one.
    """

    def __init__(self, label_keys: frozenset[str], numbers: Iterator[int]) -> None:
        self.label_keys = label_keys
        self._keys = sorted(label_keys)
        self._numbers = numbers
        self._classes: dict[object, NodeClass] = {}
        self._last: NodeClass | None = None

    def of(self, node: NodeRecord) -> NodeClass:
        """Return the node's class, given `label_keys`; cached until the node changes."""
        if node.judged is not None and node.judged_by is self:
            return node.judged
        read = node.labels
        pool = pool_of(read, node.taints, node.foreign_used) if LABEL_POOL in read else Pool.NONE
        labels = {key: read[key] for key in self._keys if key in read} if self._keys else NO_LABELS
        if pool is not Pool.NONE:
            labels = {**labels, LABEL_POOL: read[LABEL_POOL]}  # pools may have policies of their own
        found = self._last
        if found is None or not _is_of(node, found, labels, pool):
            found = self._last = self._find(node, labels, pool)
        node.judged, node.judged_by = found, self
        return found

    def _find(self, node: NodeRecord, labels: dict[str, str], pool: Pool) -> NodeClass:
        key = (
            tuple(labels.items()),
            tuple([(t.key, t.value, t.effect) for t in node.taints]),
            node.unschedulable,
            node.problem,
            tuple(node.allocatable.items()),
            pool,
            node.leaving,
            node.doubt,
            node.tested_within_h,
        )
        found = self._classes.get(key)
        if found is None:
            found = NodeClass(
                next(self._numbers),
                labels,
                node.taints,
                node.unschedulable,
                node.problem,
                node.allocatable,
                pool,
                node.leaving,
                node.doubt,
                node.tested_within_h,
            )
            self._classes[key] = found
        return found


def _is_of(node: NodeRecord, known: NodeClass, labels: dict[str, str], pool: Pool) -> bool:
    """Return whether the node certainly has that class.

    This is a quick check, because most nodes have the class of the node before.
    """
    return (
        (node.allocatable is known.allocatable or node.allocatable == known.allocatable)
        and node.problem == known.problem
        and node.unschedulable == known.unschedulable
        and not (node.taints or known.taints or node.leaving or known.leaving)
        and labels == known.labels
        and pool is known.pool
        and node.doubt is known.doubt
        and node.tested_within_h == known.tested_within_h
    )
