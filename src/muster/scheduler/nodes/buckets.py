"""Index of all nodes by bucket."""

from __future__ import annotations

from collections.abc import Collection

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.nodes.node_class import BucketKey, NodeClass, bucket_key
from muster.scheduler.persistent import Journal
from muster.scheduler.pods.pod_class import HostPort

NO_PORTS: frozenset[HostPort] = frozenset()


class BucketIndex(dict[BucketKey, Bucket]):
    """Buckets by key, with the topology domains of their nodes.

    Attributes:
        journal: nodes that came, went, changed buckets or got other labels.
    """

    def __init__(self, domains: Domains) -> None:
        """Create an index without buckets."""
        super().__init__()
        self.domains = domains
        self.journal = Journal()


class Buckets:
    """Assigns every node to its bucket.

    Args:
        domains: topology domains of the nodes.
        ordered: whether `sort` is called after changes, for readers that take nodes in order.
    """

    def __init__(self, domains: Domains, *, ordered: bool = False) -> None:
        self.all = BucketIndex(domains)
        self._changed: dict[Bucket, None] | None = {} if ordered else None
        self._whole: dict[NodeClass, Bucket] = {}
        self._last: Bucket | None = None

    def move(
        self,
        name: str,
        old: Bucket | None,
        node_class: NodeClass | None,
        free: dict[str, int],
        ports: Collection[HostPort],
    ) -> Bucket | None:
        """Move the node to its current bucket and return that; a node without a class has no bucket."""
        taken = frozenset(ports) if ports else NO_PORTS
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
            self.all.journal.add(name)
        return None

    def move_whole(self, name: str, old: Bucket | None, node_class: NodeClass) -> Bucket:
        """Like `move`, for an empty node. Most nodes are empty, and their free room need not be computed."""
        return self._enter(name, old, self._whole_bucket(node_class))

    def enter_whole(self, names: dict[str, None], node_class: NodeClass) -> Bucket:
        """Put empty nodes that have no bucket into that of their class."""
        bucket = self._whole_bucket(node_class)
        bucket.add_all(names)
        if self._changed is not None:
            self._changed[bucket] = None
        self.all.journal.extend(names)
        return bucket

    def sort(self) -> None:
        """Put the names of the buckets that changed in order, except those of nodes that take no pods."""
        if self._changed:
            for bucket in self._changed:
                if bucket.names and not bucket.node_class.problem:
                    bucket.sort()
            self._changed.clear()

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
            if self._changed is not None:
                self._changed[bucket] = None
            self.all.journal.add(name)
        return bucket

    def _leave(self, name: str, old: Bucket) -> None:
        old.remove(name)
        if self._changed is not None:
            self._changed[old] = None
        if not old.names:
            del self.all[old.key]
            if self._whole.get(old.node_class) is old:
                del self._whole[old.node_class]
