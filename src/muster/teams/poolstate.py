"""State of a node, and of a pool: its nodes counted and sorted by owner."""

from __future__ import annotations

from collections import Counter

from muster.api.lending import State
from muster.kube.objects.node import Node
from muster.teams.config import PoolConfig
from muster.teams.record import UNOWNED, Claim
from muster.teams.sorted_names import Names
from muster.teams.usage import Rank

Cell = tuple[str, bool]
"""(owner, whether the nodes are broken)."""


class Held:
    """A node as allocation sees it. Only `Holdings` changes it.

    Attributes:
        claim: its owner, from the API server.
        pool: the pool that selects it; None without one.
        broken: whether it is unusable.
        target: the new owner in a write whose event has not arrived; None without one.
        rank: what a change of owner would disturb.
    """

    __slots__ = ("broken", "claim", "name", "node", "pool", "rank", "target")

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.node = node
        self.claim = Claim(UNOWNED)
        self.pool: PoolState | None = None
        self.broken = False
        self.target: str | None = None
        self.rank = Rank.IDLE

    @property
    def owner(self) -> str:
        """The owner, including a write in flight."""
        return self.claim.owner if self.target is None else self.target

    @property
    def movable(self) -> bool:
        """Whether Muster may move it: not set by hand, and without a write in flight."""
        return self.target is None and not self.claim.by_hand


class PoolState:
    """Counts of the nodes of one pool.

    Attributes:
        total: number of nodes.
        count: number of nodes by owner and health.
        by_hand: the part of `count` that Muster may not move.
        free: names of the nodes that it may move, by owner, health and rank.
        states: number of nodes by team and use.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.name = config.name
        self.total = 0
        self.count: Counter[Cell] = Counter()
        self.by_hand: Counter[Cell] = Counter()
        self.free: dict[tuple[str, bool, Rank], Names] = {}
        self.states: Counter[tuple[str, State]] = Counter()

    def first(self, owner: str, broken: bool, count: int) -> list[str]:
        """Return the first `count` nodes to take from an owner: idle, then lent, then used ones."""
        found: list[str] = []
        for rank in Rank:
            names = self.free.get((owner, broken, rank))
            if names is not None and len(found) < count:
                found += names.smallest(count - len(found))
        return found
