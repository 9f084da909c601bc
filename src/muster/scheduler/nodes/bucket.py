"""Buckets: nodes of one class with the same free room, so a pod is matched once per bucket, not per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.scheduler.nodes.node_class import BucketKey, NodeClass
from muster.scheduler.nodes.sorted_names import SortedNames
from muster.scheduler.pods.pod_class import HostPort

RESORT_SHARE = 16
"""If more than one in this many names moved, sorting all names is cheaper than moving each."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Nodes of one class with the same free room. Only its owner changes `names`."""

    key: BucketKey
    node_class: NodeClass
    free: dict[str, int]
    ports: frozenset[HostPort]
    names: dict[str, None] = field(default_factory=dict)
    _order: SortedNames | None = None
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

    def in_order(self) -> Sequence[Sequence[str]]:
        """Return the sorted names, in blocks; without cost if none moved since `sort`."""
        return self._order.blocks if self._order is not None and not self._moved else [sorted(self.names)]

    def sort(self) -> None:
        """Keep the names in order. After the first call the cost depends on what moved, not on the size."""
        order = self._order
        if order is None or len(self._moved) * RESORT_SHARE > len(self.names):
            self._order = SortedNames(self.names)
        else:
            for name in self._moved:
                (order.add if name in self.names else order.discard)(name)
        self._moved.clear()
