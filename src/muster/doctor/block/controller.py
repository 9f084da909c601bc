"""The controller of blocks: removes those that have ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from muster.doctor.block.block import Block
from muster.doctor.block.decide import decide
from muster.doctor.block.flowschema import SELECTOR, block_of
from muster.doctor.block.metrics import block_metrics
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.flowcontrol import FlowSchema
from muster.kube.planloop import PlanLoop, Rest

NAME = "blocks"
FENCE_S = 10.0
STALL_S = 60.0
IDLE_S = 60.0
_RETRY_S = 2.0
_AT_ONCE = 8


class BlockController:
    """Removes ended blocks. Works only as leader. A block that was prolonged after it was read stays.

    Args:
        client: the API server.
        clock: seconds since 1970.
        informers: shared with other controllers of this process.
        progress: marked at each plan.
        rng: source of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        *,
        informers: Informers,
        clock: Callable[[], float] = steady_time,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._informers = informers
        self._clock = clock
        self._rng = rng or random.Random()
        self._metrics = block_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=STALL_S, progress=progress)
        self._executor = Executor(NAME, at_once=_AT_ONCE, timeout_s=FENCE_S)

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        self._schemas = self._informers.of(FlowSchema, label_selector=SELECTOR)
        self._schemas.add_handler(lambda old, new: self._loop.wake())
        async with asyncio.TaskGroup() as group:
            await self._loop.follow(group, self._schemas)
            await self._loop.run(self._step)

    async def _step(self) -> Rest:
        blocks = [block_of(schema) for schema in self._schemas.store.values()]
        now = self._clock()
        plan = decide(blocks, now)
        self._metrics.active.set(len(blocks) - len(plan.removals))
        done = await asyncio.gather(*map(self._remove, plan.removals))
        failed = not all(done)
        self._metrics.overdue.set(sum(not each for each in done))
        wake_at = now + _RETRY_S * self._rng.uniform(0.5, 1.5) if failed else plan.wake_at
        return Rest.until(wake_at, self._clock(), settle_s=0.0, idle_s=IDLE_S)

    async def _remove(self, block: Block) -> bool:
        write = partial(
            self._client.delete, FlowSchema, block.object_name, uid=block.uid, resource_version=block.version
        )
        result = await self._executor.run(f"ended block {block.object_name}", write)
        if result.outcome is WriteOutcome.DONE:
            self._metrics.removed.inc()
        return result.outcome in (WriteOutcome.DONE, WriteOutcome.OVERTAKEN)
