"""Nodes, and nodes that are alike: a `NodeClass` is what a node is as far as any known pod can tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from muster.api.names import TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.api.trust import Doubt, Identity
from muster.kube.node import Node, Taint
from muster.kube.resources import Amounts, allocatable
from muster.kube.taints import HARD_EFFECTS
from muster.scheduler.nodes.buckets import Bucket, BucketKey, bucket_key
from muster.scheduler.nodes.pools import Pool, pool_of
from muster.scheduler.nodes.trust import NEEDS_NONE
from muster.scheduler.pods.pod_class import HostPort, PodClass
from muster.scheduler.pods.resources import WHOLE, WHOLE_PARTS

NOTHING: dict[str, int] = {}
CLOSING = frozenset({TAINT_PREFLIGHT, TAINT_QUARANTINE})
"""Taints of nodes that are of no use now, whoever tolerates them."""
NO_LABELS: dict[str, str] = {}


@dataclass(frozen=True, slots=True, eq=False)
class NodeClass:
    """What nodes of a class have in common.

    Attributes:
        labels: only the labels that some pod class reads.
        leaving: it is about to change hands: nothing new starts there.
        doubt: why it is not trusted with work.
        tested_within_h: the least of the hours that pods ask for within which it was tested (trust.py).
        whole: the key of the bucket of its nodes that have nothing on them.
    """

    number: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    problem: str
    allocatable: dict[str, int]
    pool: Pool = Pool.NONE
    leaving: bool = False
    doubt: Doubt = Doubt.NONE
    tested_within_h: int = NEEDS_NONE
    whole: BucketKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", bucket_key(self.number, self.allocatable, ()))


class NodeRecord:
    """One node: what it is, and what is on it. Changed by `NodeTable` only.

    Attributes:
        used: taken by pods that have not finished and by held slots.
        foreign_used: the part taken by pods that no gang of ours has.
        fully_held: slots held here whose size is not known (no pod of the gang exists): nothing else fits.
        judged: its class among the classes of `judged_by`, until the node object or its use by others changes.
        stale: what it would have left without gangs may have changed since it was put in its `empty_bucket`.
        identity: what its test has to be of; None where it needs none.
        gpus, doubt, tested_within_h: what is known of its tests (trust.py).
        closed: its taints say that nothing but tests may come.
        arriving: of `holds`, those whose pods are being bound.
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
        self.used: dict[str, int] = {}
        self.foreign_used: dict[str, int] = {}
        self.ports: Counter[HostPort] = Counter()
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
        """Take over what the node object says."""
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
        """Whether nothing is on it or kept on it."""
        return not (self.fully_held or self.ports or (self.used and any(self.used.values())))

    def free(self) -> dict[str, int]:
        """Return what is left, as integers; nothing where a slot of unknown size is held. The caller may change it."""
        if self.fully_held:
            return {}
        return self.free_without_holds()

    def free_for_new(self) -> dict[str, int]:
        """Return what is left for those who may come now.

        Where only tests may, slots are no hindrance: a gang that waits for its node would keep the test away from it.
        What is on its way there is: it may come yet.
        """
        if not self.holds or not (self.doubt or self.closed):
            return self.free()
        free = self.free_without_holds()
        for key, cls in self.holds.items():
            for resource, value in cls.request.items() if cls is not None and key not in self.arriving else ():
                free[resource] = free.get(resource, 0) + value
        return free

    def free_without_holds(self) -> dict[str, int]:
        """Return what is left beside pods and slots of known size."""
        used = self.used
        return {resource: value - used.get(resource, 0) for resource, value in self.allocatable.items()}

    def free_when_empty(self) -> dict[str, int]:
        """Return what would be left without any gang's pod or held slot."""
        used = self.foreign_used
        return {resource: value - used.get(resource, 0) for resource, value in self.allocatable.items()}

    def take(self, request: Amounts, ports: Iterable[HostPort], *, foreign: bool, sign: int = 1) -> None:
        """Count a pod in (sign 1) or out (sign -1)."""
        _count(self.used, request, sign)
        if foreign:
            _count(self.foreign_used, request, sign)
            self.judged = None
            self.stale = True
        for port in ports:
            self.ports[port] += sign
            if self.ports[port] <= 0:
                del self.ports[port]


def _count(into: dict[str, int], request: Amounts, sign: int) -> None:
    for resource, value in request.items():
        into[resource] = into.get(resource, 0) + sign * value


def node_problem(node: Node) -> str:
    """Return why nothing new may start on the node, "" where it may.

    The node lifecycle controller turns conditions into taints; Ready and NetworkUnavailable are read here too, for
    clusters where none runs. Pressure conditions count through their taints only: tolerating them is up to the pod.
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
    """All node classes, by what pods can tell apart.

    Args:
        label_keys: the labels that pods read.
        numbers: where classes get their numbers; shared with the classes these replace, so that none is used twice
            and a bucket of an old class is never taken for one of a new class.
    """

    def __init__(self, label_keys: frozenset[str], numbers: Iterator[int]) -> None:
        self.label_keys = label_keys
        self._keys = sorted(label_keys)
        self._numbers = numbers
        self._classes: dict[object, NodeClass] = {}
        self._last: NodeClass | None = None

    def of(self, node: NodeRecord) -> NodeClass:
        """Return the class of the node, as seen through `label_keys`: judged once, until something changes."""
        if node.judged is not None and node.judged_by is self:
            return node.judged
        read, pool = node.labels, pool_of(node)
        labels = {key: read[key] for key in self._keys if key in read} if self._keys else NO_LABELS
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
                dict(node.allocatable),
                pool,
                node.leaving,
                node.doubt,
                node.tested_within_h,
            )
            self._classes[key] = found
        return found


def _is_of(node: NodeRecord, known: NodeClass, labels: dict[str, str], pool: Pool) -> bool:
    """Whether the node is for sure of that class: as most nodes are alike, one look at the class before tells most."""
    return (
        node.allocatable == known.allocatable
        and node.problem == known.problem
        and node.unschedulable == known.unschedulable
        and not (node.taints or known.taints or node.leaving or known.leaving)
        and labels == known.labels
        and pool is known.pool
        and node.doubt is known.doubt
        and node.tested_within_h == known.tested_within_h
    )
