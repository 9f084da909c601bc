"""The ledger of a plan: the free room on nodes minus the room that the plan uses. It does not change the buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from muster.kube.objects.resources import plus
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.domains import Domains, Layer
from muster.scheduler.nodes.node_class import BucketKey, bucket_key
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.pods.pod_class import HostPort, PodClass
from muster.scheduler.pods.resources import minus, times_fits


class _Over(Bucket):
    """Nodes on which a ledger took room. A fork has its own copy under the same key."""

    __slots__ = ()


class Ledger:
    """The nodes' free room and domain counts, minus what was taken through this ledger.

    Forks accept buckets that this ledger returned, and map them to their own copies.
    """

    def __init__(self, buckets: Mapping[BucketKey, Bucket]) -> None:
        self._base = buckets
        self.layer = Layer(buckets.domains if isinstance(buckets, BucketIndex) else Domains({}))
        self._gone: dict[Bucket, set[str]] = {}
        self._passed: dict[Bucket, tuple[int, int]] = {}
        self._over: dict[BucketKey, _Over] = {}
        self._where: dict[str, _Over] = {}
        self._taken: dict[tuple[Bucket, PodClass, int], _Over] = {}
        """Cache: the bucket of a node after it has taken a number of pods of a class.

        Gangs in a queue often take the same.
        """

    def buckets(self) -> Iterator[tuple[Bucket, int]]:
        """Yield buckets with the number of nodes left in them."""
        for bucket in self._base.values():
            left = len(bucket.names) - len(self._gone.get(bucket, ()))
            if left > 0:
                yield bucket, left
        for over in self._over.values():
            if over.names:
                yield over, len(over.names)

    def touched(self) -> Iterator[Bucket]:
        """Yield the buckets that nodes left or entered through this ledger."""
        yield from self._gone
        yield from self._over.values()

    def first(self, bucket: Bucket, count: int) -> Sequence[str]:
        """Return at most `count` names, in order. The cost depends on `count`, not on the bucket's size."""
        if isinstance(bucket, _Over):
            return sorted(self._over[bucket.key].names)[:count]
        blocks, gone = bucket.in_order(), self._gone.get(bucket)
        number, at = self._passed.get(bucket, (0, 0)) if gone else (0, 0)  # all names before this place are gone
        if gone:
            while number < len(blocks):
                block, end = blocks[number], len(blocks[number])
                while at < end and block[at] in gone:
                    at += 1
                if at < end:
                    break
                number, at = number + 1, 0
            self._passed[bucket] = number, at
        found: list[str] = []
        while number < len(blocks) and len(found) < count:
            block, left = blocks[number], count - len(found)
            names = block[at : at + left]
            if gone and not gone.isdisjoint(names):
                names = list(islice((name for name in islice(block, at, None) if name not in gone), left))
            found += names
            number, at = number + 1, 0
        return found

    def names(self, bucket: Bucket) -> list[str]:
        """Return the names of the nodes left in the bucket, sorted."""
        if isinstance(bucket, _Over):
            return sorted(self._over[bucket.key].names)
        gone = self._gone.get(bucket)
        return sorted(bucket.names.keys() - gone) if gone else sorted(bucket.names)

    def room(self, node: NodeRecord) -> Bucket | None:
        """Return the node's current bucket; None if the node does not exist."""
        return self._where.get(node.name) or node.bucket

    def bucket_of(self, name: str, before: Bucket) -> Bucket:
        """Return the node's current bucket. `before` is its bucket before room was taken."""
        return self._where.get(name, before)

    def take(self, bucket: Bucket, names: Sequence[str], cls: PodClass, times: int) -> None:
        """Take room for `times` pods of the class on each of these nodes of the bucket."""
        known = self._taken.get((bucket, cls, times))
        if known is None:
            request = {resource: value * times for resource, value in cls.request.items()}
            known = self._target(bucket, minus(bucket.free, request), bucket.ports | frozenset(cls.ports))
            self._taken[bucket, cls, times] = known
        self._shift(bucket, names, known)
        if cls.subjects:
            for name in names:
                self.layer.count(cls, name, times)

    def give(self, bucket: Bucket, names: Sequence[str], cls: PodClass) -> None:
        """Return the room of one pod of the class on each of these nodes of the bucket."""
        target = self._target(bucket, plus(bucket.free, cls.request), bucket.ports - frozenset(cls.ports))
        self._shift(bucket, names, target)
        if cls.subjects:
            for name in names:
                self.layer.count(cls, name, -1)

    def fork(self) -> Ledger:
        """Return a copy of this ledger that may be discarded."""
        other = Ledger(self._base)
        other.layer = self.layer.fork()
        other._passed = dict(self._passed)
        other._gone = {bucket: set(names) for bucket, names in self._gone.items()}
        other._over = {
            key: _Over(key, bucket.node_class, bucket.free, bucket.ports, dict(bucket.names))
            for key, bucket in self._over.items()
        }
        other._where = {name: other._over[bucket.key] for name, bucket in self._where.items()}
        return other

    def adopt(self, other: Ledger) -> None:
        """Become `other`, a fork of this ledger."""
        self._gone, self._passed, self._over, self._where = other._gone, other._passed, other._over, other._where
        self.layer, self._taken = other.layer, other._taken

    def _target(self, bucket: Bucket, free: dict[str, int], ports: frozenset[HostPort]) -> _Over:
        key = bucket_key(bucket.node_class.number, free, ports)
        target = self._over.get(key)
        if target is None:
            target = self._over[key] = _Over(key, bucket.node_class, free, ports)
        return target

    def _shift(self, bucket: Bucket, names: Sequence[str], target: _Over) -> None:
        if isinstance(bucket, _Over):
            here = self._over[bucket.key].names
            for name in names:
                del here[name]
        else:
            self._gone.setdefault(bucket, set()).update(names)
        target.names.update(dict.fromkeys(names))
        self._where.update(dict.fromkeys(names, target))


def fits(cls: PodClass, bucket: Bucket) -> int:
    """Return how many pods of the class, for one gang, fit on one node of the bucket."""
    times = times_fits(cls.request, bucket.free)
    if cls.ports and times:
        return 0 if any(_clash(port, taken) for port in cls.ports for taken in bucket.ports) else 1
    return min(times, 1) if cls.alone else times


def _clash(left: HostPort, right: HostPort) -> bool:
    """Return whether two host ports collide: an empty IP means every address."""
    return left[1:] == right[1:] and (left[0] == right[0] or not left[0] or not right[0])
