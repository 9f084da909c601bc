"""Pools whose nodes Cluster Autoscaler or Karpenter create.

These act on pods with PodScheduled False, reason Unschedulable (Kubernetes: Node Autoscaling). The scheduler writes
this condition on all pods of an approved gang (docs/scheduling.md, "Adding nodes"), so they see the whole demand. This
provider only waits for the nodes, within the pool's limits, and reports a pool that does not deliver. The other
autoscaler also deletes the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec


class External:
    """Counts the nodes of its pools.

    Args:
        nodes: returns the names of a pool's nodes in the API server.
    """

    def __init__(self, nodes: Callable[[PoolSpec], Collection[str]]) -> None:
        self._nodes = nodes
        self._asked: dict[str, int] = {}
        self._had: dict[str, int] = {}

    async def look(self, pool: PoolSpec) -> Group:
        """Return the pool as its nodes show it. Nodes that the other autoscaler deletes are not requested again."""
        names = sorted(self._nodes(pool))
        lost = max(0, self._had.get(pool.name, len(names)) - len(names))
        asked = max(len(names), self._asked.get(pool.name, 0) - lost)
        self._asked[pool.name], self._had[pool.name] = asked, len(names)
        return Group(asked, tuple(Instance(name, node_name=name) for name in names), deletes=False)

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Set how many nodes to wait for."""
        self._asked[pool.name] = size

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Not supported and never called: `Group.deletes` is false."""
        raise NotImplementedError(
            f"Muster cannot give back nodes of pool {pool.name}; the program that made them does it"
        )

    async def close(self) -> None:
        """Do nothing: this provider holds no resources."""
