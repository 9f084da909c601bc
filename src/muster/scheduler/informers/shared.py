"""Informers that the scheduler shares with other controllers of this process.

With one watch per kind and process, the API server encodes and this process decodes each object once.
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
from muster.kube.objects.node import Node


@dataclass(frozen=True)
class Followed:
    """Shared informers for these kinds, which live longer than a leader's term."""

    nodes: Informer[Node]
    placements: Informer[Placement]
    jobs: Informer[TrainingJob]

    @contextmanager
    def heard_by(
        self, nodes: Handler[Node], placements: Handler[Placement], jobs: Handler[TrainingJob]
    ) -> Iterator[None]:
        """Context in which the handlers get every known object, and each change."""
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
        """List everything again, as a new leader must. Raises TimeoutError."""
        await asyncio.gather(*(informer.refresh(timeout_s) for informer in (self.nodes, self.placements, self.jobs)))
