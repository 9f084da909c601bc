"""Bounds what one job may use at once, so that a job whose store hangs does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """A number of places, and how many of them one job may take. Others wait in order.

    Args:
        total: places.
        per_job: places of one job.
    """

    def __init__(self, total: int, per_job: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._per_job = per_job
        self._jobs: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def take(self, job: str) -> AsyncIterator[None]:
        """Hold a place while the context is open."""
        own, users = self._jobs.get(job) or (asyncio.Semaphore(self._per_job), 0)
        self._jobs[job] = (own, users + 1)
        try:
            async with own, self._all:
                yield
        finally:
            own, users = self._jobs.pop(job)
            if users > 1:
                self._jobs[job] = (own, users - 1)
