"""The controller of joins: taints new nodes, and opens them to pods at a pace that the API server can take."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.trimmed import FORMS
from muster.fleet.joins import pace as paces
from muster.fleet.joins.config import CONFIG_KEY, CONFIG_MAP, JoinsConfig, parse_config
from muster.fleet.joins.decide import decide, to_hold
from muster.fleet.joins.metrics import join_metrics
from muster.fleet.joins.plan import Plan
from muster.fleet.joins.record import (
    ANNOTATION_JOIN_PACE,
    ANNOTATION_JOIN_RECORD,
    JOINING,
    JoinRecord,
    PaceRecord,
    is_held,
    pace_of,
    pace_words,
    record_of,
    view_of,
)
from muster.fleet.joins.scrape import Reading, between, read
from muster.fleet.joins.snapshot import JoiningNode
from muster.kube.client import Client
from muster.kube.clock import instant, steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.errors import ApiError, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.events import WARNING, EventRecorder
from muster.kube.executor import Executor
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from muster.kube.objects.struct import encode
from muster.kube.objects.taints import NodeChange
from muster.kube.planloop import PlanLoop, Rest
from muster.kube.taintwriter import Outcome, TaintWriter

log = logging.getLogger(__name__)

NAME = "joins"
FENCE_S = 10.0
STALL_S = 300.0
SCRAPE_TIMEOUT_S = 5.0
IDLE_SCRAPE_S = 60.0
"""How often the API server's load is read while no node joins, for autoscalers."""
PACE_WRITE_S = 10.0
"""The shortest interval between writes of the pace for users."""
WRITERS = 64
"""Writes in flight."""
HOLDERS = 8
"""How many new nodes get their taint at the same time."""
_READINGS_MAX = 16
_OWNED = ((JOINING.key, JOINING.effect),)


class JoinController:
    """Opens joining nodes to pods, a limited number in each period. Works only as leader.

    Args:
        client: the API server.
        namespace: the namespace of the ConfigMap.
        clock: seconds since the epoch.
        scrape: returns the API server's metrics as text; its own /metrics by default.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked in each period.
        rng: source of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        clock: Callable[[], float] = steady_time,
        scrape: Callable[[], Awaitable[str]] | None = None,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._scrape = scrape or self._metrics_page
        self._progress = progress
        self._rng = rng or random.Random()
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._metrics = join_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=STALL_S, progress=progress)
        self._executor = Executor(NAME, at_once=WRITERS, timeout_s=FENCE_S)
        self._writer = TaintWriter(client, _OWNED, field_manager=f"muster-{NAME}", rng=self._rng)
        self._config = JoinsConfig()
        self._plan = Plan((), 0, 0)
        self.pace = paces.start(self._bounds)
        """The pace of the current period."""
        self._reported: set[paces.Cause] = set()
        """Causes of the current overload for which an Event was sent. Each cause gets one Event."""

    @property
    def coming_max(self) -> int:
        """The number of nodes that may be on their way at once."""
        return paces.coming_max(self.pace, self._bounds)

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        self._nodes: dict[str, JoiningNode] = {}
        self._to_hold: asyncio.Queue[str] = asyncio.Queue()
        self._readings: OrderedDict[float, Reading] = OrderedDict()
        self._opened = 0
        self._scraped_at = float("-inf")
        self._pace_written_at = float("-inf")
        self._events = EventRecorder(self._client, f"muster-{NAME}", clock=self._clock, rng=self._rng)
        self._source = ConfigMapSource(
            config_map_informer(self._informers, self._namespace, CONFIG_MAP),
            lambda found: parse_config(text_of(found, CONFIG_KEY)),
            self._config,
            events=self._events,
            meanwhile="joins keep the last valid configuration",
            changed=self._config_changed,
        )
        nodes = self._informers.of(Node)
        async with self._events, asyncio.TaskGroup() as group:
            await self._loop.follow(group, self._source.informer)
            self.pace = paces.start(self._bounds)
            nodes.add_handler(self._node_changed)
            for _ in range(HOLDERS):
                group.create_task(self._hold_new())
            await self._loop.follow(group, nodes)
            # A previous leader may have opened nodes a moment ago.
            await asyncio.sleep(self._config.period_s)
            await self._loop.run(self._period)

    async def _period(self) -> Rest:
        """Open the nodes of one period. The next one begins a whole period after the last node was opened."""
        now = asyncio.get_running_loop().time()
        joining = any(node.held for node in self._nodes.values())
        if joining or now - self._scraped_at >= IDLE_SCRAPE_S:
            self._scraped_at = now
            await self._look(self._opened)
        self._plan = decide(self._nodes.values(), self.pace.allowance)
        self._metrics.show(self.pace, self._plan)
        await asyncio.gather(*(self._open(name) for name in self._plan.opens))
        self._opened = len(self._plan.opens)
        await self._show_pace()
        return Rest(self._config.period_s, 0.0)

    async def _look(self, opened: int) -> None:
        """Read the API server's load and set the pace."""
        judgement = await self._judgement()
        waiting = self._plan.waiting + self._plan.coming
        self.pace = paces.onwards(self.pace, judgement, opened, waiting, self._bounds)
        if judgement.verdict is not paces.Verdict.OVERLOADED:
            self._reported.clear()
        elif waiting:
            words = pace_words(self.pace, self._config.period_s)
            log.warning("joins: %s", words)
            if judgement.cause not in self._reported and self._source.found is not None:
                self._reported.add(judgement.cause)
                self._events.event(self._source.found, WARNING, "JoinsSlowed", words)

    async def _judgement(self) -> paces.Judgement:
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                reading = read(await self._scrape())
        except (TimeoutError, TooManyRequests, Unavailable, ServerTimeout) as error:
            self._metrics.scrapes.labels("unanswered").inc()
            said = str(error) or f"no answer within {SCRAPE_TIMEOUT_S:g} s"
            why = f"the API server does not say how it is: {said}"
            return paces.Judgement(paces.Verdict.OVERLOADED, paces.Cause.NO_ANSWER, why)
        except ApiError as error:
            self._metrics.scrapes.labels("refused").inc()
            why = f"the API server's metrics cannot be read: {error}"
            return paces.Judgement(paces.Verdict.UNKNOWN, paces.Cause.UNREADABLE, why)
        self._metrics.scrapes.labels("read").inc()
        known = self._readings.pop(reading.replica, None)
        self._readings[reading.replica] = reading
        if len(self._readings) > _READINGS_MAX:
            self._readings.popitem(last=False)
        return paces.judge(between(known, reading))

    async def _metrics_page(self) -> str:
        return (await self._client.request("GET", "/metrics")).decode()

    async def _open(self, name: str) -> None:
        why = pace_words(self.pace, self._config.period_s)

        def change(node: Node) -> NodeChange | None:
            if not is_held(node):
                return None
            before = record_of(node)
            made = node.metadata.creation_timestamp
            since = before.since if before is not None else instant(made.timestamp() if made else self._clock())
            record = JoinRecord(since, instant(self._clock()), why)
            return NodeChange(drop=_OWNED, annotations={ANNOTATION_JOIN_RECORD: encode(record).decode()})

        if await self._write(name, change) is Outcome.WRITTEN:
            self._metrics.opened.inc()

    async def _hold_new(self) -> None:
        """Put the taint on new nodes before they are Ready."""
        while True:
            name = await self._to_hold.get()

            def change(node: Node) -> NodeChange | None:
                if not self._is_to_hold(view_of(node)):
                    return None
                record = JoinRecord(instant(self._clock()))
                return NodeChange(put=(JOINING,), annotations={ANNOTATION_JOIN_RECORD: encode(record).decode()})

            await self._write(name, change)

    async def _write(self, name: str, change: Callable[[Node], NodeChange | None]) -> Outcome | None:
        """Write one node. A failed write is retried in the next period, or when the node changes."""
        written = (await self._executor.run(f"node {name}", partial(self._writer.write, name, change))).value
        return written.outcome if written is not None else None

    async def _show_pace(self) -> None:
        """Write the pace for `muster nodes why`: while nodes wait, and once more when none does.

        The ConfigMap's content is compared, not our memory: a previous leader may have written it, or our write may
        have failed.
        """
        plan, now = self._plan, asyncio.get_running_loop().time()
        if self._source.found is None or now - self._pace_written_at < PACE_WRITE_S:
            return
        waiting = plan.waiting + plan.coming
        record = PaceRecord(
            nodes=self.pace.allowance,
            period_seconds=self._config.period_s,
            verdict=self.pace.verdict,
            why=self.pace.why,
            waiting=waiting,
            coming_max=self.coming_max,
            cause=self.pace.cause,
        )
        shown = pace_of(self._source.found)
        if record == shown or not (waiting or (shown is not None and shown.waiting)):
            return
        patch = {"metadata": {"annotations": {ANNOTATION_JOIN_PACE: encode(record).decode()}}}
        show = partial(self._client.patch, ConfigMap, CONFIG_MAP, patch, namespace=self._namespace)
        await self._executor.run("the pace", show)
        self._pace_written_at = now

    @property
    def _bounds(self) -> paces.Bounds:
        config = self._config
        return paces.Bounds(config.start_nodes, config.max_nodes, config.period_s)

    def _config_changed(self) -> None:
        self._config = self._source.value
        self._metrics.config_broken.set(bool(self._source.problem))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._nodes.pop(old.name, None)
            return
        node = self._nodes[new.name] = view_of(new)
        if self._is_to_hold(node):
            self._to_hold.put_nowait(new.name)

    def _is_to_hold(self, node: JoiningNode) -> bool:
        made = self._source.found.metadata.creation_timestamp if self._source.found is not None else None
        return made is not None and to_hold(node, self._config.node_selector, made.timestamp())
