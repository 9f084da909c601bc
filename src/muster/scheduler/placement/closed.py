"""Nodes that a gang may not use, because they are reserved for gangs before it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.placement.ledger import fits
from muster.scheduler.pods.pod_class import PodClass


class Closed(msgspec.Struct, frozen=True):
    """Reserved nodes.

    Attributes:
        classes: numbers of node classes. All their nodes are closed.
        kept: by number of a node class: pod classes for which its nodes are reserved. A node is closed if one of their
            pods fits on it now.
        nodes: names of further closed nodes.
    """

    classes: frozenset[int] = frozenset()
    kept: Mapping[int, frozenset[PodClass]] = {}
    nodes: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Return whether any node may be closed."""
        return bool(self.classes or self.kept or self.nodes)

    def closes(self, bucket: Bucket) -> bool:
        """Return whether all nodes of the bucket are closed."""
        number = bucket.node_class.number
        return number in self.classes or any(fits(cls, bucket) for cls in self.kept.get(number, ()))


OPEN = Closed()
"""No node is closed."""
