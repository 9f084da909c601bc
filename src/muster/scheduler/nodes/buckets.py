"""Groups nodes of one class with the same free room into buckets, so a pod is matched once per bucket, not per node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.scheduler.pods.pod_class import HostPort

if TYPE_CHECKING:
    from muster.scheduler.nodes.domains import Domains
    from muster.scheduler.nodes.node_class import NodeClass

BucketKey = tuple[int, tuple[tuple[str, int], ...], frozenset[HostPort]]
RESORT_SHARE = 16
"""If more than one in this many names moved, sorting all names is cheaper than inserting each."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Nodes of one class with the same free room. Only its owner changes `names`."""

    key: BucketKey
    node_class: NodeClass
    free: dict[str, int]
    ports: frozenset[HostPort]
    names: dict[str, None] = field(default_factory=dict)
    _order: list[str] | None = None
    _moved: set[str] = field(default_factory=set)

    def add(self, name: str) -> None:
        """Add a node."""
        self.names[name] = None
        if self._order is not None:
            self._moved.add(name)

    def add_all(self, names: dict[str, None]) -> None:
        """Add nodes."""
        self.names.update(names)
        if self._order is not None:
            self._moved.update(names)

    def remove(self, name: str) -> None:
        """Remove a node."""
        del self.names[name]
        if self._order is not None:
            self._moved.add(name)

    def in_order(self) -> Sequence[str]:
        """Return the sorted names. After the first call the cost depends on what moved, not on the size."""
        order = self._order
        if order is None or len(self._moved) * RESORT_SHARE > len(order):
            order = self._order = sorted(self.names)
        else:
            for name in self._moved:
                at = bisect_left(order, name)
                there = at < len(order) and order[at] == name
                if name not in self.names and there:
                    del order[at]
                elif name in self.names and not there:
                    order.insert(at, name)
        self._moved.clear()
        return order


class BucketIndex(dict[BucketKey, Bucket]):
    """Buckets by key, with the topology domains of their nodes.

    Attributes:
        moved: nodes that came, went, changed buckets or got other labels; None while no reader uses it.
    """

    def __init__(self, domains: Domains) -> None:
        """Create an index without buckets."""
        super().__init__()
        self.domains = domains
        self.moved: list[str] | None = None


class Buckets:
    """Assigns every node to its bucket."""

    def __init__(self, domains: Domains) -> None:
        self.all = BucketIndex(domains)
        self._whole: dict[NodeClass, Bucket] = {}
        self._last: Bucket | None = None

    def move(
        self,
        name: str,
        old: Bucket | None,
        node_class: NodeClass | None,
        free: dict[str, int],
        ports: Iterable[HostPort],
    ) -> Bucket | None:
        """Move the node to its current bucket and return that; a node without a class has no bucket."""
        taken = frozenset(ports)
        for known in (old, self._last):  # nodes of one gang move to the same bucket, one after the other
            if known is None or known.node_class is not node_class or not known.names:
                continue
            if known.free == free and known.ports == taken:
                return self._enter(name, old, known)
        if node_class is not None:
            self._last = self._bucket(node_class, bucket_key(node_class.number, free, taken), free)
            return self._enter(name, old, self._last)
        if old is not None:
            self._leave(name, old)
            if self.all.moved is not None:
                self.all.moved.append(name)
        return None

    def move_whole(self, name: str, old: Bucket | None, node_class: NodeClass) -> Bucket:
        """Like `move`, for an empty node. Most nodes are empty, and their free room need not be computed."""
        return self._enter(name, old, self._whole_bucket(node_class))

    def enter_whole(self, names: dict[str, None], node_class: NodeClass) -> Bucket:
        """Put empty nodes that have no bucket into that of their class."""
        bucket = self._whole_bucket(node_class)
        bucket.add_all(names)
        if self.all.moved is not None:
            self.all.moved.extend(names)
        return bucket

    def _whole_bucket(self, node_class: NodeClass) -> Bucket:
        bucket = self._whole.get(node_class)
        if bucket is None:
            bucket = self._whole[node_class] = self._bucket(node_class, node_class.whole, node_class.allocatable)
        return bucket

    def _bucket(self, node_class: NodeClass, key: BucketKey, free: dict[str, int]) -> Bucket:
        bucket = self.all.get(key)
        if bucket is None:
            bucket = self.all[key] = Bucket(key, node_class, dict(free), key[2])
        return bucket

    def _enter(self, name: str, old: Bucket | None, bucket: Bucket) -> Bucket:
        if bucket is not old:
            if old is not None:
                self._leave(name, old)
            bucket.add(name)
            if self.all.moved is not None:
                self.all.moved.append(name)
        return bucket

    def _leave(self, name: str, old: Bucket) -> None:
        old.remove(name)
        if not old.names:
            del self.all[old.key]
            if self._whole.get(old.node_class) is old:
                del self._whole[old.node_class]


def bucket_key(class_number: int, free: dict[str, int], ports: Iterable[HostPort]) -> BucketKey:
    """Return the bucket key for a node class, its free room and used host ports."""
    return (class_number, tuple(sorted(free.items())), frozenset(ports))
