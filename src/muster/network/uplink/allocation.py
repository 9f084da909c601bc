"""One term of the leader: plans again and again, and sends the rates that change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.kube.planloop import Rest
from muster.network.uplink.cache import UplinkCache
from muster.network.uplink.decide import decide
from muster.network.uplink.hub import Hub, Term
from muster.network.uplink.metrics import UplinkMetrics
from muster.network.uplink.page import UplinkPage, page_of
from muster.network.uplink.plan import Plan
from muster.network.uplink.snapshot import Snapshot

SETTLE_S: Final = 0.25
"""The shortest time between plans. Reports of a second change them, so there are at most four plans a second."""
BLOCKED_SETTLE_S: Final = 0.1
"""The same while raises wait: lower limits are confirmed within a round trip."""
IDLE_S: Final = 1.0
"""The longest time between plans: leases of silent nodes end and decay without events."""
_SHARE: Final = 5
"""The loop rests at least this many times as long as a plan takes, so that other controllers can work."""
_BATCH: Final = 200
"""Messages that are sent before other tasks run."""


class Allocation:
    """Shares the budget for one term.

    Args:
        cache: what the hub knows.
        hub: sends rates. It is open for this allocation until `end`.
        epoch: names the term.
        wake: starts the next plan soon.
        metrics: shows plans.
        clock: monotonic seconds, the hub's clock.
        cpu: CPU seconds of this thread.
    """

    def __init__(
        self,
        cache: UplinkCache,
        hub: Hub,
        epoch: str,
        wake: Callable[[], None],
        metrics: UplinkMetrics,
        *,
        clock: Callable[[], float],
        cpu: Callable[[], float],
    ) -> None:
        self.cache, self.epoch = cache, epoch
        self._hub, self._metrics, self._clock, self._cpu = hub, metrics, clock, cpu
        self._seq = 0
        self._last: tuple[Snapshot, Plan] | None = None
        self._ended = False
        hub.open(Term(cache, epoch, wake, self.page))

    def end(self, *, off: bool = False) -> None:
        """Disconnect all agents. With `off` there is no budget any more."""
        self._ended = True
        self._hub.close(off=off)

    def page(self) -> UplinkPage | None:
        """Return what `muster network uplink` shows; None before the first plan."""
        if self._last is None:
            return None
        return page_of(self.cache, *self._last, self.epoch, self._clock())

    async def plan(self) -> Rest:
        """Share the budget once, and send what changes. Returns the pause until the next plan."""
        self._hub.drop_unresponsive()
        now, began = self._clock(), self._cpu()
        views, records = self.cache.views()
        snapshot = self.cache.snapshot(views, now)
        plan = decide(snapshot)
        used_s = self._cpu() - began
        messages = []
        for new in plan.nodes:
            self._seq += 1
            record = records[new.node]
            messages.append((record, self.cache.rates(record, new, self._seq, self.epoch)))
        for index, (record, rates) in enumerate(messages):
            if self._hub.send(record, rates):
                self.cache.sent(record, rates, now)
                self._metrics.sent.inc()
            if index % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
                if self._ended:
                    break
        self._last = (snapshot, plan)
        self._metrics.plan_seconds.set(used_s)
        self._metrics.show(snapshot, plan)
        settle_s = max(BLOCKED_SETTLE_S if plan.blocked else SETTLE_S, used_s * _SHARE)
        return Rest(settle_s, max(0.0, IDLE_S - settle_s))
