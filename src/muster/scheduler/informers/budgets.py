"""Watches pod disruption budgets. Until all are known the scheduler evicts no pod; it continues with other work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from muster.kube.client import Client
from muster.kube.errors import Forbidden, NotFound
from muster.kube.informer import Informer
from muster.kube.objects.policy import PodDisruptionBudget
from muster.scheduler.informers.owners import LOOK_AGAIN_S, SETTLE_S
from muster.scheduler.state import ClusterState


class BudgetWatch:
    """Keeps the state's budgets up to date.

    Args:
        client: the API server.
        state: receives the budgets.
        changed: called after each change.
        rng: source of jitter.
    """

    def __init__(
        self, client: Client, state: ClusterState, *, changed: Callable[[], None], rng: random.Random | None = None
    ) -> None:
        self._client = client
        self._state = state
        self._changed = changed
        self._rng = rng
        self._known = asyncio.Event()

    async def settle(self) -> None:
        """Wait until all budgets are known, so that a new leader continues evictions; at most `SETTLE_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._known.wait()

    async def run(self) -> None:
        """Watch until cancelled."""
        # Not part of liveness: a scheduler that may not read budgets schedules, but evicts no pod.
        informer = Informer(self._client, PodDisruptionBudget, rng=self._rng)
        informer.add_handler(self._budget_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            while not informer.has_synced:
                with suppress(TimeoutError):
                    await informer.wait_synced(LOOK_AGAIN_S)
            self._state.budgets.known = True
            self._known.set()
            self._changed()

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self._state.budgets.set(new)
        elif old is not None:
            self._state.budgets.remove(old.key)
        self._changed()


async def list_budgets(client: Client, state: ClusterState) -> None:
    """List the budgets once; without permission to list them, they stay unknown. Raises ApiError."""
    with suppress(NotFound, Forbidden):
        for budget in (await client.list_all(PodDisruptionBudget)).items:
            state.budgets.set(budget)
        state.budgets.known = True
