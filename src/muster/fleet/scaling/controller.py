"""The scaling controller: reads pools and nodes, decides, and executes the plan, in a loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.placement import Placement
from muster.api.trimmed import FORMS
from muster.fleet.providers.aws import AutoScalingGroups
from muster.fleet.providers.base import Provider, ProviderError
from muster.fleet.providers.external import External
from muster.fleet.scaling.classify import tracked_key
from muster.fleet.scaling.config import CONFIG_KEY, CONFIG_MAP, EXTERNAL, parse_config
from muster.fleet.scaling.decide import decide
from muster.fleet.scaling.demands import Demands
from muster.fleet.scaling.events import Teller
from muster.fleet.scaling.executor import Carried, Carrier, fault_of
from muster.fleet.scaling.metrics import scaling_metrics
from muster.fleet.scaling.node_views import external_pool, node_views, placement_keeps, pod_keeps
from muster.fleet.scaling.plan import Action, Delete, Plan
from muster.fleet.scaling.pool_memory import silent
from muster.fleet.scaling.snapshot import COMING_MAX, POLL_S, Fault, Group, PoolMemory, PoolSpec, View
from muster.fleet.scaling.states import Tracked
from muster.fleet.scaling.status import ScalingStatus, kept_times, read_status, status_of, write_status
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.errors import ApiError, ConfigError
from muster.kube.events import EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.planloop import PlanLoop, Rest

log = logging.getLogger(__name__)

NAME = "scaling"
PAUSE_S = 1.0
LOOK_TIMEOUT_S = 60.0
FENCE_S = 30.0
"""How long a request of the previous leader to a provider may still take effect."""
STALL_S = 900.0


class ScalingController:
    """Scales the pools of the ConfigMap `muster-scaling`; without that ConfigMap it watches nothing else.

    Args:
        client: the API server.
        namespace: the namespace of Muster and of the ConfigMap.
        identity: this process, in Events.
        demands: the nodes that gangs lack.
        providers: more providers by name, in addition to `aws` and `external`.
        coming_max: returns how many nodes may be on their way at once; a larger gang is served alone.
        clock: seconds since the epoch.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked at each plan.
        rng: source of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        demands: Demands,
        *,
        providers: Mapping[str, Provider] | None = None,
        coming_max: Callable[[], int] | None = None,
        clock: Callable[[], float] = steady_time,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._demands = demands
        self._coming_max = coming_max
        self._clock = clock
        self._rng = rng or random.Random()
        self._metrics = scaling_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=STALL_S, progress=progress, changed=demands.changed)
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._nodes = self._informers.of(Node)
        self._pods = self._informers.of(Pod, indexes={"node": pod_keeps})
        self._placements = self._informers.of(Placement, indexes={"node": placement_keeps})
        own: dict[str, Provider] = {"aws": AutoScalingGroups(), EXTERNAL: External(self._nodes_of)}
        self._providers: Mapping[str, Provider] = {**own, **(providers or {})}
        self._carrier = Carrier(client, self._providers, clock)
        self._tracked: Mapping[str, Tracked] = {}
        self._memory: Mapping[str, PoolMemory] = {}
        self._faults: dict[str, tuple[Fault, str, float]] = {}
        self._written: ScalingStatus | None = None

    async def run(self, *, term: Term | None = None) -> None:
        """Scale until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        recorder = EventRecorder(
            self._client, "muster-scaling", instance=self._identity, clock=self._clock, rng=self._rng
        )
        self._config = self._config_source(recorder)
        try:
            async with recorder as events, asyncio.TaskGroup() as group:
                await self._loop.follow(group, self._config.informer)
                while not (self._config.value or self._config.problem):
                    await self._demands.changed.wait()
                    self._demands.changed.clear()
                await self._loop.follow(group, self._nodes, self._pods, self._placements)
                with suppress(ApiError, ConfigError):
                    self._written = await read_status(self._client, self._namespace)
                teller = Teller(events, self._demands, self._namespace)
                await self._loop.run(lambda: self._once(teller))
        finally:
            self._demands.forget()
            for provider in self._providers.values():
                await provider.close()

    async def _once(self, teller: Teller) -> Rest:
        poll_s = min((pool.poll_s for pool in self._config.value), default=POLL_S)
        if not self._demands.known:
            return Rest(PAUSE_S, poll_s)
        view = await self._view()
        now = self._clock()
        plan = decide(view, now)
        teller.planned(plan)
        await self._carry_out(view, plan, teller)
        self._metrics.planned(view, plan, now)
        await self._report(view, plan, teller)
        return Rest.until(plan.wake_at, self._clock(), settle_s=PAUSE_S, idle_s=poll_s)

    def _config_source(self, events: EventRecorder) -> ConfigMapSource[tuple[PoolSpec, ...]]:
        def read(found: ConfigMap | None) -> tuple[PoolSpec, ...]:
            return parse_config(text_of(found, CONFIG_KEY), frozenset(self._providers)) if found is not None else ()

        def changed() -> None:
            self._metrics.config_valid.set(not self._config.problem)
            self._loop.wake()

        return ConfigMapSource(
            config_map_informer(self._informers, self._namespace, CONFIG_MAP),
            read,
            (),
            events=events,
            meanwhile="the pools stay as they were",
            changed=changed,
            reason="ScalingConfigInvalid",
        )

    async def _view(self) -> View:
        pools, faults, self._faults = self._config.value, self._faults, {}
        groups: dict[str, Group] = {}

        async def look(pool: PoolSpec) -> None:
            known = self._memory.get(pool.name)
            if known is not None and silent(known, self._clock()):
                return
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    groups[pool.name] = await self._providers[pool.provider].look(pool)
            except TimeoutError:
                faults[pool.name] = (Fault.TIMED_OUT, f"no answer in {LOOK_TIMEOUT_S:g} s", 0.0)
            except ProviderError as error:
                faults[pool.name] = (error.fault, error.message, error.wait_s)
                self._metrics.faults.labels(pool.name, error.fault.value).inc()

        await asyncio.gather(*map(look, pools))
        return View(
            pools=pools,
            groups=groups,
            nodes=node_views(self._nodes.store.values(), pools, groups, self._occupied),
            demands=self._demands.gangs,
            tracked=self._tracked,
            memory=self._memory,
            faults=faults,
            coming_max=self._coming_max() if self._coming_max is not None else COMING_MAX,
        )

    async def _carry_out(self, view: View, plan: Plan, teller: Teller) -> None:
        """Execute the plan, all pools in parallel. Actions that fail are not remembered as done."""
        self._tracked, self._memory = plan.tracked, plan.memory
        pools = {pool.name: pool for pool in view.pools}
        by_pool: dict[str, list[Action]] = {}
        for action in plan.actions:
            by_pool.setdefault(action.pool, []).append(action)
        done = await asyncio.gather(*(self._one_pool(pools[name], actions) for name, actions in by_pool.items()))
        carried = [each for results in done for each in results]
        failed = [each.action for each in carried if not each.done]
        self._tracked, self._memory = undone(plan, view, failed)
        for each in carried:
            outcome = each.fault.fault.value if each.fault is not None else "refused" if each.refused else "done"
            self._metrics.actions.labels(each.action.pool, type(each.action).__name__, outcome).inc()
            log.info("pool %s: %s: %s", each.action.pool, each.action, each.refused or outcome)
            teller.carried(each)

    async def _one_pool(self, pool: PoolSpec, actions: Sequence[Action]) -> list[Carried]:
        """Execute a pool's actions in order. After a provider error, the rest is left for the next plan."""
        results: list[Carried] = []
        for action in actions:
            if pool.name in self._faults:
                results.append(Carried(action, refused="the provider is in trouble"))
                continue
            carried = await self._carrier.carry_out(action, pool)
            trouble = fault_of(carried)
            if trouble is not None:
                self._faults[pool.name] = trouble
                self._metrics.faults.labels(pool.name, trouble[0].value).inc()
            results.append(carried)
        return results

    async def _report(self, view: View, plan: Plan, teller: Teller) -> None:
        status = kept_times(status_of(view, plan, self._config.problem, self._clock()), self._written)
        teller.status(status)
        if status == self._written:
            return
        try:
            await write_status(self._client, self._namespace, status)
            self._written = status
        except (ApiError, ConfigError) as error:
            log.warning("status of scaling not written: %s", error)

    def _occupied(self, node: str) -> str:
        for pod in self._pods.by_index("node", node):
            return f"pod {pod}"
        for placement in self._placements.by_index("node", node):
            return f"a slot of {placement}"
        return ""

    def _nodes_of(self, pool: PoolSpec) -> list[str]:
        return [node.name for node in self._nodes.store.values() if external_pool(node, (pool,))]


def undone(plan: Plan, view: View, actions: Iterable[Action]) -> tuple[dict[str, Tracked], dict[str, PoolMemory]]:
    """Return node states and pool memory as if these actions had not been in the plan that was made from `view`.

    A size that was not set needs no correction: the next read shows the group's actual size.
    """
    tracked, memory = dict(plan.tracked), dict(plan.memory)
    for action in actions:
        if not isinstance(action, Delete):
            continue
        key = tracked_key(action.pool, action.instance)
        before = view.tracked.get(key)
        if before is not None:
            tracked[key] = before
        else:
            tracked.pop(key, None)
        if not action.replace:
            known = memory[action.pool]
            memory[action.pool] = replace(known, asked=known.asked + 1)
    return tracked, memory
