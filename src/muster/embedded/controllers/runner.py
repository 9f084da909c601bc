"""Runs the embedded controllers: each sees every change, and works in small synchronous steps.

All of them run in the API server's own event loop on its clock. So in a simulation the same changes lead to the same
writes in the same order.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.controllers.budgets import BudgetStatus
from muster.embedded.controllers.collector import Collector
from muster.embedded.controllers.eventexpiry import EventExpiry
from muster.embedded.controllers.eviction import TaintEviction
from muster.embedded.controllers.namespaces import Namespaces
from muster.embedded.controllers.nodes import NodeLifecycle
from muster.embedded.controllers.orphans import OrphanedPods
from muster.embedded.controllers.quotas import QuotaStatus
from muster.embedded.item import Item

NODE_MONITOR_GRACE_S = 40.0


class Controller(Protocol):
    """One controller."""

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Record a change, without writes."""
        ...

    def work(self, now: float) -> float | None:
        """Do the work that is due. Returns when more is due; None if only a change can cause more work."""
        ...


class Controllers:
    """All controllers. If `node_monitor_grace_s` is None, silent nodes are not marked."""

    def __init__(self, core: ApiCore, node_monitor_grace_s: float | None = NODE_MONITOR_GRACE_S) -> None:
        self._clock = core.context.clock
        self._wake = asyncio.Event()
        self.last_progress = self._clock.now()
        self._all: list[Controller] = [
            Namespaces(core),
            Collector(core),
            TaintEviction(core),
            OrphanedPods(core),
            QuotaStatus(core),
            BudgetStatus(core),
            EventExpiry(core),
        ]
        if node_monitor_grace_s is not None:
            self._all.insert(0, NodeLifecycle(core, node_monitor_grace_s))
        for table in core.store.tables.values():
            for item in table.items.values():
                self._note(table.resource, None, item)
        core.store.listeners.append(self._changed)

    def step(self) -> float | None:
        """Do all work that is due. Returns when the next known work is due."""
        now = self._clock.now()
        self.last_progress = now
        due = [when for when in [controller.work(now) for controller in self._all] if when is not None]
        return min(due, default=None)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._wake.clear()
            due = self.step()
            if self._wake.is_set():
                await asyncio.sleep(0)  # the work caused changes: let waiting requests run first
                continue
            delay = None if due is None else max(0.0, due - self._clock.now())
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        self._note(resource, old, new)
        self._wake.set()

    def _note(self, resource: str, old: Item | None, new: Item | None) -> None:
        for controller in self._all:
            controller.changed(resource, old, new)
