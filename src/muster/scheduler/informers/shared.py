"""Informers that the scheduler need not run itself: others of the same process follow these kinds anyway.

One watch of a kind in a process: what the API server encodes, and what is decoded here, is done once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.kube.cache import Handler
from muster.kube.informer import Informer
from muster.kube.node import Node


@dataclass(frozen=True)
class Followed:
    """Informers of all objects of these kinds, which outlive terms of leading."""

    nodes: Informer[Node]
    placements: Informer[Placement]
    jobs: Informer[TrainingJob]

    @contextmanager
    def heard_by(
        self, nodes: Handler[Node], placements: Handler[Placement], jobs: Handler[TrainingJob]
    ) -> Iterator[None]:
        """Within, call these for everything that is known, and for each change."""
        self.nodes.add_handler(nodes)
        self.placements.add_handler(placements)
        self.jobs.add_handler(jobs)
        try:
            yield
        finally:
            self.nodes.remove_handler(nodes)
            self.placements.remove_handler(placements)
            self.jobs.remove_handler(jobs)

    async def refresh(self, timeout_s: float) -> None:
        """List everything anew, as who begins to lead must. Raises TimeoutError."""
        await asyncio.gather(*(informer.refresh(timeout_s) for informer in (self.nodes, self.placements, self.jobs)))
