"""Node failures in a replay: the interface of failure sources, and the simple source of crashes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from muster.sim.replay.run import Run

HOUR_S = 3600.0


class Stage(Protocol):
    """The part of the replay that failures use. Times are virtual seconds."""

    @property
    def now(self) -> float:
        """The time since the beginning."""

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Schedule a call."""

    def lose_node(self, name: str, saved: bool) -> None:
        """Take a node out of use. Its jobs move to other nodes, with or without saving their work."""

    def return_node(self, name: str) -> None:
        """Return a node to use."""

    def stop_work(self, name: str) -> None:
        """Restart the programs on a node; the node itself stays ready."""


class Failing(Protocol):
    """A source of node failures."""

    failures: int

    def begin(self) -> None:
        """Called when the replay begins."""

    def going(self, run: Run, since_s: float) -> None:
        """Called when a job has all its nodes. It works from the time `since_s` on."""


class Crashes:
    """Nodes that stop one by one and return repaired. Their jobs fail at once."""

    def __init__(
        self, stage: Stage, nodes: Sequence[str], rng: random.Random, *, mtbf_hours: float, repair_hours: float
    ) -> None:
        self._stage, self._nodes, self._rng = stage, nodes, rng
        self._mtbf_hours, self._repair_hours = mtbf_hours, repair_hours
        self._down: set[str] = set()
        self.failures = 0

    def begin(self) -> None:
        """Schedule the first failure."""
        self._stage.at(self._stage.now + self._until_next(), self._fail)

    def going(self, run: Run, since_s: float) -> None:
        """Do nothing: running nodes have no hidden faults."""

    def _fail(self) -> None:
        name = self._rng.choice(self._nodes)
        if name not in self._down:
            self.failures += 1
            self._down.add(name)
            self._stage.lose_node(name, False)
            repair_s = self._rng.expovariate(1 / (self._repair_hours * HOUR_S))
            self._stage.at(self._stage.now + repair_s, lambda: self._repair(name))
        self._stage.at(self._stage.now + self._until_next(), self._fail)

    def _repair(self, name: str) -> None:
        self._down.discard(name)
        self._stage.return_node(name)

    def _until_next(self) -> float:
        return self._rng.expovariate(len(self._nodes) / (self._mtbf_hours * HOUR_S))
