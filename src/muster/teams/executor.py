"""Executes plans of the teams controller: one rate-limited write per changed node, a few in flight."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial

from muster.api.trimmed import trimmed_node
from muster.kube.client import Client
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.objects.node import Node
from muster.kube.objects.taints import NO_SCHEDULE, NodeChange
from muster.kube.taintwriter import Outcome, TaintWriter
from muster.teams.cache import Holdings
from muster.teams.metrics import TeamsMetrics
from muster.teams.plan import Change
from muster.teams.record import claim_of
from muster.teams.usage import Rank

FIELD_MANAGER = "muster-teams"
WORKERS = 8
WRITES_PER_S = 100.0
RETRY_S = 5.0


class NodeWriter:
    """Writes changes to nodes.

    Attributes:
        failing: nodes whose last write failed, by name. It is unknown when they will change teams.

    Args:
        client: the API server.
        holdings: records writes in flight and their outcomes.
        changed: called after each outcome.
        written: called for each node that was written.
        metrics: counts writes.
        rng: source of jitter.
        writes_per_s: rate limit.
        request_timeout_s: deadline of one write.
    """

    def __init__(
        self,
        client: Client,
        holdings: Holdings,
        *,
        changed: Callable[[], None],
        written: Callable[[Change, Node], None],
        metrics: TeamsMetrics,
        rng: random.Random,
        writes_per_s: float = WRITES_PER_S,
        request_timeout_s: float = 10.0,
    ) -> None:
        self.failing: set[str] = set()
        self._client = client
        self._holdings = holdings
        self._changed = changed
        self._written = written
        self._metrics = metrics
        self._rng = rng
        self._gap_s = 1.0 / writes_per_s
        self._executor = Executor("teams", at_once=WORKERS, timeout_s=request_timeout_s)
        self._next_at = 0.0
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        self._slots = asyncio.Semaphore(WORKERS)

    def submit(self, changes: Iterable[Change]) -> list[Change]:
        """Queue changes; return those that were not queued or in flight already."""
        begun = [change for change in changes if self._holdings.begin(change)]
        for change in begun:
            self._queue.put_nowait(change)
        return begun

    def clear(self) -> None:
        """Drop queued changes, because their plan is not valid any more."""
        while not self._queue.empty():
            self._holdings.abandon(self._queue.get_nowait().node)

    async def run(self) -> None:
        """Write until cancelled."""
        now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                await asyncio.sleep(max(0.0, self._next_at - now()))
                change = await self._queue.get()  # taken as late as possible: `clear` may drop it until then
                self._next_at = now() + self._gap_s
                group.create_task(self._try(change))

    async def _try(self, change: Change) -> None:
        try:
            result = await self._executor.run(f"node {change.node}", partial(self._write, change))
            if result.outcome is WriteOutcome.DONE:
                self.failing.discard(change.node)
                return
            self._metrics.writes.labels(change.why, "failed").inc()
            self.failing.add(change.node)
            self._changed()
            await asyncio.sleep(RETRY_S)
        finally:
            self._slots.release()
            self._holdings.abandon(change.node)  # the written node is known by now
            self._changed()

    async def _write(self, change: Change) -> None:
        held = self._holdings.nodes.get(change.node)
        known = held.node if held is not None and held.node.uid == change.uid else None
        keys = {change.record.key, change.former_key or change.record.key}
        writer = TaintWriter(
            self._client, [(key, NO_SCHEDULE) for key in keys], field_manager=FIELD_MANAGER, rng=self._rng
        )
        done = await writer.write(change.node, lambda node: self._wanted(change, node), known=known)
        self._metrics.writes.labels(change.why, done.outcome.value.lower()).inc()
        if done.node is not None:
            self._holdings.set_node(trimmed_node(done.node))
            if done.outcome is Outcome.WRITTEN:
                self._written(change, done.node)

    def _wanted(self, change: Change, node: Node) -> NodeChange | None:
        """Return the change if it still applies to the present node."""
        holdings, meta = self._holdings, node.metadata
        if node.uid != change.uid:
            return None
        held, config = holdings.nodes.get(node.name), holdings.config
        waits = config is None or config.running_gangs == "Wait"
        if waits and change.previous != change.record.team and held is not None and held.rank is Rank.BUSY:
            return None  # a gang came while the write was queued
        claim = claim_of(meta.labels, node.spec.taints, meta.annotations, holdings.team_key)
        done = claim.owner == change.record.team and claim.intact
        if claim.by_hand or done or claim.owner not in (change.previous, change.record.team):
            return None
        return change.write()
