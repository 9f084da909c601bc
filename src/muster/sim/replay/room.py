"""Counts the use of each node independently of the scheduler, to check the scheduler's binds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from muster.sim.replay.job import NodeShape, Shape, serves


class InvariantBroken(AssertionError):
    """The scheduler broke a rule; the message says which one and when."""


class Room:
    """GPUs, CPU and memory left on each node.

    Attributes:
        gpus: of all nodes.
        busy: GPUs in use.
        down: GPUs of nodes that failed and are not yet repaired, in use or not.
        split: free GPUs on usable nodes whose other GPUs are in use: a whole-node gang cannot use them.
        idle: free GPUs on usable nodes.
    """

    def __init__(self, nodes: Iterable[NodeShape]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._used: dict[str, list[int]] = {name: [0, 0, 0] for name in self._nodes}
        self._down: set[str] = set()
        self.gpus = sum(node.gpus for node in self._nodes.values())
        self.busy = 0
        self.down = 0
        self.split = 0
        self.idle = self.gpus
        self._with_free: dict[int, int] = defaultdict(int)  # usable nodes by free GPUs
        for node in self._nodes.values():
            self._with_free[node.gpus] += 1

    def take(self, name: str, shape: Shape, who: str) -> None:
        """Record a bound pod. Raises InvariantBroken if it does not fit, or if the node is not usable."""
        node = self._nodes[name]
        if name in self._down:
            raise InvariantBroken(f"{who} was bound to {name}, which has failed")
        if shape.models and node.model not in shape.models:
            raise InvariantBroken(f"{who} was bound to {name}, whose GPUs are {node.model or 'none'}")
        used = self._count(node, shape, 1)
        if used[0] > node.gpus or 0 < node.cpu_milli < used[1] or 0 < node.memory_mib < used[2]:
            raise InvariantBroken(f"{who} was bound to {name}, which is over its capacity now: {used} of {node}")

    def give(self, name: str, shape: Shape) -> None:
        """Record that a pod is gone."""
        self._count(self._nodes[name], shape, -1)

    def has_room(self, shape: Shape, members: int) -> bool:
        """Return whether so many usable nodes each have room for one more pod of the shape."""
        if sum(count for free, count in self._with_free.items() if free >= shape.gpus) < members:
            return False
        if not (shape.cpu_milli or shape.memory_mib or shape.models):
            return True
        return sum(self._takes(node, shape) for node in self._nodes.values()) >= members

    def _takes(self, node: NodeShape, shape: Shape) -> bool:
        gpus, cpu_milli, memory_mib = self._used[node.name]
        needs = Shape(gpus + shape.gpus, cpu_milli + shape.cpu_milli, memory_mib + shape.memory_mib, shape.models)
        return node.name not in self._down and serves(node, needs)

    def set_down(self, name: str, down: bool) -> None:
        """Record that the node failed or was repaired."""
        if down != (name in self._down):
            (self._down.add if down else self._down.discard)(name)
            node, used, sign = self._nodes[name], self._used[name][0], 1 if down else -1
            self.down += sign * node.gpus
            self.idle -= sign * (node.gpus - used)
            self.split -= sign * (node.gpus - used) if used else 0
            self._with_free[node.gpus - used] -= sign

    def _count(self, node: NodeShape, shape: Shape, sign: int) -> list[int]:
        """Add or subtract a pod. Returns the used GPUs, CPU and memory of the node."""
        used = self._used[node.name]
        before, gpus = used[0], sign * shape.gpus
        used[0] = after = before + gpus
        used[1] += sign * shape.cpu_milli
        used[2] += sign * shape.memory_mib
        self.busy += gpus
        if node.name not in self._down:
            self.idle -= gpus
            self._with_free[node.gpus - before] -= 1
            self._with_free[node.gpus - after] += 1
            self.split += (node.gpus - after if after else 0) - (node.gpus - before if before else 0)
        return used
