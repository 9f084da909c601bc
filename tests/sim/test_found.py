"""What simulations found, one by one, where a small test says it better than a seed (docs/track-record.md)."""

from __future__ import annotations

from muster.scheduler.nodes import NodeRecord


def test_reckoning_with_what_is_free_on_one_node_never_frees_another() -> None:
    """`muster explain` added up what would be freed, in a dictionary that all nodes with unknown slots shared."""
    held, other = NodeRecord("held"), NodeRecord("other")
    held.fully_held = other.fully_held = 1
    held.free()["nvidia.com/gpu"] = 8
    assert other.free() == {}
