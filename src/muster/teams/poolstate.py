"""One node, and the nodes of one pool, counted and sorted by whose they are."""

from __future__ import annotations

from collections import Counter

from muster.api.lending import State
from muster.kube.node import Node
from muster.teams.config import PoolConfig
from muster.teams.ordered import Names
from muster.teams.record import NOBODY, Claim
from muster.teams.usage import Rank

Cell = tuple[str, bool]
"""An owner, and whether the nodes are broken."""


class Held:
    """One node. Changed by `Holdings` only.

    Attributes:
        claim: whose it is by what the API server says.
        pool: where its labels put it; None in no pool.
        broken: of no use to its owner.
        target: whose it will be, by a write that has not been seen yet; None where none is under way.
        rank: what a change of hands would disturb.
    """

    __slots__ = ("broken", "claim", "name", "node", "pool", "rank", "target")

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.node = node
        self.claim = Claim(NOBODY)
        self.pool: PoolState | None = None
        self.broken = False
        self.target: str | None = None
        self.rank = Rank.IDLE

    @property
    def owner(self) -> str:
        """Whose it is, or is about to be."""
        return self.claim.owner if self.target is None else self.target

    @property
    def movable(self) -> bool:
        """Whether it is ours to give to somebody else, and nothing is under way."""
        return self.target is None and not self.claim.by_hand


class PoolState:
    """The nodes of one pool, counted.

    Attributes:
        total: nodes in it.
        count: nodes by owner and health.
        by_hand: those of them that are not ours to move.
        free: names of those that are, by owner, health and rank.
        states: nodes by team and what they are to it.
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
        """The first `count` nodes to take from an owner: idle ones, then lent ones, then those in use."""
        found: list[str] = []
        for rank in Rank:
            names = self.free.get((owner, broken, rank))
            if names is not None and len(found) < count:
                found += names.smallest(count - len(found))
        return found
