"""The input of decide: nodes, as far as joins read them."""

from __future__ import annotations

from muster.fleet.nodes.node import FleetNode


class JoiningNode(FleetNode, frozen=True, kw_only=True):
    """A node in the form that joins use.

    Attributes:
        held: it has the taint of joining nodes.
        recorded: it has our record: it was held back before.
    """

    held: bool
    recorded: bool = False

    @property
    def turn(self) -> tuple[float, str]:
        """Its sort key in the queue: the smallest goes first."""
        return self.created_at, self.name
