"""Buckets: nodes of one class with the same free room, so a pod is matched once per bucket, not per node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from muster.scheduler.nodes.node_class import BucketKey, NodeClass
from muster.scheduler.pods.pod_class import HostPort

RESORT_SHARE = 16
"""If more than one in this many names moved, sorting all names is cheaper than merging them."""
FEW_MOVED = 8
"""Up to this many names are inserted one by one; with more, copying the list once is cheaper."""


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
        """Return the sorted names; without cost if none moved since `sort`."""
        return sorted(self.names) if self._order is None or self._moved else self._order

    def sort(self) -> None:
        """Keep the names in order. After the first call the cost depends on what moved, hardly on the size."""
        order, moved = self._order, self._moved
        if order is None or len(moved) * RESORT_SHARE > len(order):
            self._order = sorted(self.names)
        elif len(moved) > FEW_MOVED:
            self._order = self._merged(order, moved)
        else:
            for name in moved:
                at = bisect_left(order, name)
                there = at < len(order) and order[at] == name
                if name not in self.names and there:
                    del order[at]
                elif name in self.names and not there:
                    order.insert(at, name)
        moved.clear()

    def _merged(self, order: list[str], moved: Iterable[str]) -> list[str]:
        found: list[str] = []
        at = 0
        for name in sorted(moved):
            to = bisect_left(order, name, at)
            found += order[at:to]
            at = to + (to < len(order) and order[to] == name)
            if name in self.names:
                found.append(name)
        return found + order[at:]
