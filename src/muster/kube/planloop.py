"""The loop of a controller that plans for the whole cluster: wait for the fence, fill the caches, plan after changes.

Controllers that reconcile one key at a time use `Controller` instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.informers import SharedInformer
from muster.kube.leader import Term

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 120.0
"""The interval of the warning that a cache is still incomplete."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The pause after a plan.

    Attributes:
        settle_s: this time always passes; changes during it lead to one plan.
        wait_s: after that, the next plan starts when something has changed, or at the latest after this time.
    """

    settle_s: float
    wait_s: float

    @classmethod
    def until(cls, wake_at: float | None, now: float, *, settle_s: float, idle_s: float) -> Self:
        """Return the pause that ends at `wake_at`, or after `idle_s` if that is earlier or `wake_at` is None."""
        return cls(settle_s, idle_s if wake_at is None else min(idle_s, max(0.0, wake_at - now - settle_s)))


class PlanLoop:
    """Calls `plan` after changes, and after `Rest.wait_s` without one. It works only while this process leads.

    A term calls `begin`, `follow` and `run`, in this order.

    Args:
        name: the controller, in logs and progress marks.
        fence_s: how long a request of the previous leader may still take effect after that leader stopped.
        stall_s: how long a plan may take, its execution included, before liveness fails.
        progress: marked at each plan.
        changed: an event that starts a plan when it is set; by default a new one.
    """

    def __init__(
        self,
        name: str,
        *,
        fence_s: float,
        stall_s: float,
        progress: Progress | None = None,
        changed: asyncio.Event | None = None,
    ) -> None:
        self._name = name
        self._fence_s = fence_s
        self._stall_s = stall_s
        self._progress = progress
        self._changed = changed or asyncio.Event()
        self.since = float("-inf")
        """The event loop's time since when no request of an earlier leader can take effect."""

    def wake(self, changed: bool = True) -> None:
        """Start a plan soon, if `changed` is true."""
        if changed:
            self._changed.set()

    async def begin(self, term: Term | None) -> None:
        """Wait until requests of a leader before `term` have ended. Without a term, there was none."""
        if term is not None:
            await term.outwait(self._fence_s, self._name)
            self.since = term.fenced_at(self._fence_s)

    async def follow(self, group: asyncio.TaskGroup, *informers: SharedInformer[Any]) -> None:
        """Start the informers in `group` and wait for their first lists of this term."""
        for informer in informers:
            group.create_task(informer.run(self.since))
        await complete(self._name, *informers)

    async def run(self, plan: Callable[[], Awaitable[Rest | None]]) -> None:
        """Plan until cancelled, or until `plan` returns None. `plan` also executes what it decides."""
        progress = self._progress
        if progress is not None:
            progress.expect(self._name, self._stall_s)
        try:
            while True:
                self._changed.clear()
                rest = await plan()
                if rest is None:
                    return
                if progress is not None:
                    progress.expect(self._name, self._stall_s + rest.settle_s + rest.wait_s)
                await asyncio.sleep(rest.settle_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest.wait_s):
                        await self._changed.wait()
        finally:
            if progress is not None:
                progress.drop(self._name)


async def complete(name: str, *informers: Informer[Any] | SharedInformer[Any]) -> None:
    """Wait until each informer has its first list. There is no limit: one unreadable cache must not stop others.

    `name` is the controller that waits.
    """
    for informer in informers:
        while not informer.has_synced:
            try:
                await informer.wait_synced(SYNC_TIMEOUT_S)
            except TimeoutError as error:
                log.warning("%s: %s", name, error)
