"""The input of decide: nodes, as far as joins read them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class NodeView(msgspec.Struct, frozen=True):
    """A node in the form that joins use.

    Attributes:
        labels: the node's labels.
        held: it has the taint of joining nodes.
        recorded: it has our record: it was held back before.
        created_at: when its Node object was created, seconds since the epoch.
    """

    name: str
    ready: bool
    held: bool
    recorded: bool = False
    created_at: float = 0.0
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def turn(self) -> tuple[float, str]:
        """Its sort key in the queue: the smallest goes first."""
        return self.created_at, self.name
