"""Pools whose nodes Cluster Autoscaler or Karpenter make.

What they act on are pods with PodScheduled False, reason Unschedulable (Kubernetes: Node Autoscaling). The scheduler
writes that on all pods of a gang that is approved (docs/scheduling.md, "Adding nodes"), so the demand is published as a
whole already. Here it is waited for, within the pool's bounds, and a pool that does not deliver is reported. Nodes are
given back by whoever made them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec


class External:
    """Counts the nodes of its pools.

    Args:
        nodes: names of a pool's nodes, as the API server has them.
    """

    def __init__(self, nodes: Callable[[PoolSpec], Collection[str]]) -> None:
        self._nodes = nodes
        self._asked: dict[str, int] = {}
        self._had: dict[str, int] = {}

    async def look(self, pool: PoolSpec) -> Group:
        """Return the pool as its nodes show it. Nodes that others take back are no longer asked for."""
        names = sorted(self._nodes(pool))
        lost = max(0, self._had.get(pool.name, len(names)) - len(names))
        asked = max(len(names), self._asked.get(pool.name, 0) - lost)
        self._asked[pool.name], self._had[pool.name] = asked, len(names)
        return Group(asked, tuple(Instance(name, node_name=name) for name in names), deletes=False)

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Wait for so many."""
        self._asked[pool.name] = size

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Never asked for: `Group.deletes` is false."""
        raise NotImplementedError(f"nodes of pool {pool.name} are given back by whoever made them")

    async def close(self) -> None:
        """Nothing is open."""
