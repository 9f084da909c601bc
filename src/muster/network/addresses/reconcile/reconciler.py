"""The loop of the reconciler: looks at all views, decides, holds and frees addresses, and keeps the findings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from muster.network.addresses.addresses import Addresses, Clock
from muster.network.addresses.attachment import Assigned, AttachmentKey
from muster.network.addresses.errors import StoreError
from muster.network.addresses.reconcile.comparison import compare
from muster.network.addresses.reconcile.plan import Plan
from muster.network.addresses.reconcile.snapshot import KernelView, Sandbox, Snapshot

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0

Exclusive = Callable[[AttachmentKey], AbstractContextManager[None]]


class Reconciler:
    """Compares the views of one node.

    Args:
        addresses: the store.
        clock: the node's clock.
        kernel: returns the kernel's view; blocking.
        runtime: returns the runtime's view.
        provider: returns problems of blocks.
        exclusive: keeps ADD and DEL from working on an attachment.
    """

    def __init__(
        self,
        addresses: Addresses,
        clock: Clock,
        *,
        kernel: Callable[[], KernelView | None],
        runtime: Callable[[], Awaitable[Mapping[str, Sandbox] | None]],
        provider: Callable[[], Mapping[str, str]],
        exclusive: Exclusive,
    ) -> None:
        self._addresses = addresses
        self._clock = clock
        self._kernel = kernel
        self._runtime = runtime
        self._provider = provider
        self._exclusive = exclusive
        self.plan = Plan()
        """The newest comparison."""
        self.freed = 0
        """Number of attachments that were freed since the agent started."""

    async def run(self, mark: Callable[[], None]) -> None:
        """Compare once in each period, until cancelled. `mark` records progress."""
        while True:
            mark()
            try:
                await self.step()
            except Exception:  # a view that no one foresaw must not end ADD and DEL with the agent
                log.exception("the views of addresses were not compared")
            await asyncio.sleep(PERIOD_S)

    async def step(self) -> Plan:
        """Compare once, and free what is confirmed."""
        # The store first: what is added after it was read is in no view, and so it is not judged.
        attachments = self._addresses.all()
        runtime = await self._runtime()
        kernel = await asyncio.to_thread(self._kernel)
        snapshot = Snapshot(
            attachments=attachments,
            kernel=kernel,
            runtime=runtime,
            boot_id=self._clock.boot_id,
            now_s=self._clock.now_s(),
            provider=self._provider(),
        )
        self.plan = compare(snapshot, self.plan.suspects)
        if kernel is not None:
            self._addresses.hold(self.plan.hold)
        for each in self.plan.free:
            await asyncio.to_thread(self._free, each)
        return self.plan

    def _free(self, assigned: Assigned) -> None:
        """Free an attachment, unless ADD or DEL changed it since it was looked at, or its interface appeared."""
        with self._exclusive(assigned.key):
            kernel = self._kernel()
            if kernel is None or assigned.key in kernel.interfaces or self._addresses.find(assigned.key) != assigned:
                return
            try:
                self._addresses.release(assigned.key)
            except StoreError as error:
                log.warning("the leaked address of %s stays held: %s", assigned.key, error)
                return
        self.freed += 1
        ips = ", ".join(address.ip for address in assigned.addresses)
        log.warning("freed %s, which %s in %s/%s leaked", ips, assigned.key, assigned.pod.namespace, assigned.pod.name)
