"""The scheduler's controller: informers feed the state, decide returns a plan, and writers execute it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.handover import Handover
from muster.api.placement import Placement
from muster.api.preflight import Preflight
from muster.api.training_job import TrainingJob
from muster.api.trimmed import FORMS
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer
from muster.kube.events import EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers, SharedInformer
from muster.kube.leader import Term
from muster.kube.objects.meta import KubeObject
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.planloop import PlanLoop, Rest, complete
from muster.scheduler.actions.binder import Binder
from muster.scheduler.actions.bound_events import Announcer
from muster.scheduler.actions.claim_lookups import follow_claims
from muster.scheduler.actions.evictor import SPARED_S, Evictor
from muster.scheduler.actions.gang_events import Reporter, Waits
from muster.scheduler.actions.volume_provisioning import Provisioner
from muster.scheduler.actions.writer import PlacementAction, PlacementWriter
from muster.scheduler.config import CONFIG_MAP, UNKNOWN, SchedulerConfig, read_config
from muster.scheduler.decide import decide
from muster.scheduler.explain.gpu_time import GpuTime
from muster.scheduler.explain.queue_head_metrics import HeadNodes
from muster.scheduler.forecast.ended import finished_at
from muster.scheduler.forecast.forecaster import Forecaster, Forecasts
from muster.scheduler.forecast.recorder import RunRecorder
from muster.scheduler.gangs.adapters.membership import Workload
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import job_facts
from muster.scheduler.informers.budgets import BudgetWatch
from muster.scheduler.informers.cluster import surroundings
from muster.scheduler.informers.owners import WorkloadFollower
from muster.scheduler.memo import EMPTY
from muster.scheduler.metrics import scheduler_metrics
from muster.scheduler.plan import (
    Bind,
    EvictMember,
    MarkBound,
    Plan,
    Refuse,
    ReleaseGang,
    RemoveMember,
    Settings,
    StayOn,
    TellToLeave,
    TryEviction,
    WritePlacement,
)
from muster.scheduler.queue.fair import FairOrder
from muster.scheduler.queue.unmet_demand import Lack, lacking
from muster.scheduler.shadow import Shadow
from muster.scheduler.state import ClusterState

Lacks = Callable[[Sequence[Lack]], None]
"""Callback after each plan with the gangs that lack nodes, in queue order."""

NAME = "scheduler"
STALL_S = 25.0
IDLE_S = 5.0
"""Longest time between two plans. Some changes come only with time, and a plan shows that the scheduler is alive."""
PAUSE_S = 0.02
"""Batches a burst of events into one plan."""
MARK_BOUND_WAIT_S = 20.0
"""Binds go first, because pods wait for them. Marking a gang bound may wait this long, within the bind deadline."""
MARKS_AT_ONCE = 8
"""Maximum number of concurrent writes of status Bound. Otherwise the next binds would wait behind these writes."""


class SchedulerController:
    """Schedules pods with schedulerName `muster`, in all namespaces.

    Args:
        client: the API server.
        namespace: where Muster itself runs.
        identity: name of this process in Events.
        bind_deadline_s: a gang that is not fully bound within this time is released.
        clock: seconds since the epoch.
        settings: settings that the ConfigMap `muster-scheduler` does not override; its `bind_deadline_s` is overridden.
        request_timeout_s: deadline of one write. A new leader also waits this long for the old leader's requests.
        volume_deadline_s: limit on provisioning volumes for a gang's nodes.
        waits: called with the reasons why gangs wait, and when they stop waiting.
        forecasts: called with estimates when waiting training jobs start, and when they stop waiting.
        lacks: called with the nodes that gangs lack.
        informers: shared with other controllers of this process; by default it has its own.
        handover: nodes on which no new pods may start, because they are changing teams or are reserved for a gang.
        shadow: receives every plan instead of the writers, and supplies hypothetical pods to plan for.
        progress: marked at each plan.
        rng: source of jitter.
        registry: registry for the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        bind_deadline_s: float = 30.0,
        clock: Callable[[], float] = steady_time,
        *,
        settings: Settings | None = None,
        request_timeout_s: float = 10.0,
        volume_deadline_s: float = 120.0,
        waits: Waits | None = None,
        forecasts: Forecasts | None = None,
        lacks: Lacks | None = None,
        handover: Handover | None = None,
        informers: Informers | None = None,
        shadow: Shadow | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        base = settings or Settings()
        self.settings = msgspec.structs.replace(base, bind_deadline_s=bind_deadline_s)
        self.namespace = namespace
        self.identity = identity
        self._client = client
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._volume_deadline_s = volume_deadline_s
        self._progress = progress
        self._rng = rng or random.Random()
        self._waits = waits
        self._forecaster = Forecaster(forecasts) if forecasts is not None else None
        self._lacks = lacks
        self._handover = handover
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._shadow = shadow
        self._metrics = scheduler_metrics(registry)
        self._head_nodes = HeadNodes(self._metrics)
        self._gpu_time = GpuTime(self._metrics)
        self._marking = asyncio.Semaphore(MARKS_AT_ONCE)
        self._unmarked: dict[str, asyncio.Timeout] = {}
        self._loop = PlanLoop(NAME, fence_s=request_timeout_s, stall_s=STALL_S, progress=progress)
        self._tasks: set[asyncio.Task[None]] = set()
        if shadow is not None:
            shadow.changed = self._loop.wake
        if handover is not None:
            handover.changed = self._loop.wake
        self._fair = FairOrder()
        self._synced = False
        self._config: ConfigMapSource[SchedulerConfig | None] | None = None
        self.state, self._memo = self._empty(), EMPTY

    async def run(self, stop: asyncio.Event, *, term: Term | None = None) -> None:
        """Schedule until `stop` is set, or until cancelled when the lease is lost.

        With a `term`, it first waits for requests of the previous leader to end, then lists everything again.
        """
        await self._loop.begin(term)
        self.state, self._memo = self._empty(), EMPTY
        self._fair, self._gpu_time, self._synced = FairOrder(), GpuTime(self._metrics), False
        events = EventRecorder(
            self._client, "muster-scheduler", instance=self.identity, clock=self._clock, rng=self._rng
        )
        self._config = config = ConfigMapSource[SchedulerConfig | None](
            config_map_informer(self._informers, self.namespace, CONFIG_MAP),
            read_config,
            UNKNOWN,
            events=events if self._shadow is None else None,
            meanwhile="the settings in force stay",
            changed=self._loop.wake,
        )
        common: dict[str, Any] = {
            "clock": self._clock,
            "changed": self._loop.wake,
            "metrics": self._metrics,
            "request_timeout_s": self._request_timeout_s,
        }
        self._binder = Binder(self._client, self.state, bound=self._bound, **common)
        self._provisioner = Provisioner(
            self._client,
            self.state,
            self._binder.submit,
            clock=self._clock,
            changed=self._loop.wake,
            deadline_s=self._volume_deadline_s,
            request_timeout_s=self._request_timeout_s,
        )
        self._writer = PlacementWriter(
            self._client, self.state, bind_deadline_s=self.settings.bind_deadline_s, **common
        )
        self._evictor = Evictor(self._client, self.state, **common)
        self._followers = WorkloadFollower(
            self._client,
            self.state,
            clock=self._clock,
            changed=self._loop.wake,
            seen=self._workload_seen,
            rng=self._rng,
        )
        self._budgets = BudgetWatch(self._client, self.state, changed=self._loop.wake, rng=self._rng)
        self._recorder = RunRecorder(
            self._client,
            self.namespace,
            jobs=lambda: self._jobs.store.values(),
            clock=self._clock,
            request_timeout_s=self._request_timeout_s,
            team_key=self.settings.team_key,
            rng=self._rng,
        )
        informers = self._follow_all()
        informers += await surroundings(
            self._client, self._informers, self.state, clock=self._clock, changed=self._loop.wake
        )
        informers.append(config.informer)
        async with events:
            announcer = Announcer(events, self._binder.quiet)
            self._reporter = Reporter(self._client, events, announcer, self._waits)
            helpers = [informer.run(self._loop.since) for informer in informers]
            helpers += [self._binder.run(), self._provisioner.run(), announcer.run(), self._budgets.run()]
            if self._shadow is None:
                helpers.append(self._recorder.run())
            helpers.append(follow_claims(self._client, self.state, clock=self._clock, changed=self._loop.wake))
            tasks = [asyncio.create_task(helper) for helper in helpers]
            main = asyncio.create_task(self._plan(informers), name=f"{NAME}/plan")
            stopped = asyncio.create_task(stop.wait())
            try:
                done, _ = await asyncio.wait([main, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (main, stopped, *tasks, *self._tasks):
                    task.cancel()
                await asyncio.gather(main, stopped, *tasks, *self._tasks, return_exceptions=True)
                await self._followers.stop()

    def _empty(self) -> ClusterState:
        settings = self.settings
        return ClusterState(
            bind_deadline_s=settings.bind_deadline_s,
            team_key=settings.team_key,
            trusting=self.namespace if settings.preflight_required else None,
        )

    def _follow_all(self) -> list[SharedInformer[Any]]:
        """Return the informers that update the state."""
        self._jobs = self._informers.of(TrainingJob)
        self._jobs.add_handler(self._job_changed)
        handlers: list[tuple[type[KubeObject], Any]] = [
            (Node, self._node_changed),
            (Placement, self._placement_changed),
            (Pod, self._pod_changed),
        ]
        if self.settings.preflight_required:
            handlers.append((Preflight, self._tests_changed))
        informers: list[SharedInformer[Any]] = [self._jobs]
        for kind, handler in handlers:
            informer = self._informers.of(kind)
            informer.add_handler(handler)
            informers.append(informer)
        return informers

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.state.set_node(new)
        elif old is not None:
            self.state.remove_node(old.name)
        self._loop.wake()

    def _tests_changed(self, old: Preflight | None, new: Preflight | None) -> None:
        self.state.set_tested((new or old).name, new)  # type: ignore[union-attr]
        self._loop.wake()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            if new.terminating or new.finished:
                self._mark_now(new.uid)
            now = self._clock()
            self.state.set_pod(new, now)
            if new.finished and (old is None or not old.finished):
                self._pod_ended(new.uid, finished_at(new))
            if new.spec.node_name:  # this confirms the bind, often before the API server's answer arrives
                self.state.end_bind(new.uid, now)
        elif old is not None:
            self._mark_now(old.uid)
            if not old.finished:
                self._pod_ended(old.uid)
            self.state.remove_pod(old.uid, self._clock())
            self._reporter.forget_pod(old.uid)
        self._loop.wake()

    def _pod_ended(self, uid: str, at: float | None = None) -> None:
        """Record the run of a pod that has finished at this time (None: now), or was deleted before."""
        record = self.state.pods.get(uid)
        gang = self.state.gangs.get(record.gang) if record is not None else None
        if record is not None and gang is not None:
            self._recorder.pod_ended(gang, record, self._clock() if at is None else at)

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if new is not None:
            self.state.set_placement(new, self._clock())
        elif old is not None:
            self.state.remove_placement(old)
        self._loop.wake()

    def _job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        if new is not None:
            if old is None and not self._synced:
                self.state.usage.add_ended(new, self._clock())
            self.state.jobs.set(new.uid, job_facts(new))
        elif old is not None:
            self.state.jobs.remove(old.uid)
        self._recorder.job_changed(old, new)
        self._loop.wake()

    def _workload_seen(self, workload: Workload) -> None:
        if self._shadow is None:
            self._reporter.warn(workload)

    async def _plan(self, informers: list[SharedInformer[Any]]) -> None:
        await complete(NAME, *informers)
        if self._config is not None:
            self._config.settle()
        self.state.jobs.synced()
        self._synced = True
        await self._followers.settle()
        await self._budgets.settle()
        await self._loop.run(self._once)

    async def _once(self) -> Rest:
        now = self._clock()
        started = time.perf_counter()
        if self._shadow is not None:
            self._shadow.apply(self.state)
        model = self._recorder.look(self.state.gangs)
        if model is not None:
            self.state.set_run_times(model)
        self._followers.follow_wanted()
        if self._handover is not None:
            self.state.set_leaving(self._handover.closed(self.state.stays_for_now))
        settings = self.settings_in_force()
        self._metrics.config_broken.set(bool(self._config is not None and self._config.problem))
        if self._fair.apply(self.state, settings, now):
            self._loop.wake()
        snapshot = self.state.snapshot(now)
        plan = decide(snapshot, now, settings, self._memo)
        self._memo = plan.memo
        self.state.searched(plan.searches)
        took_s = time.perf_counter() - started
        self._metrics.planned(plan, took_s, now)
        self._head_nodes.look(snapshot, plan, now)
        self._gpu_time.look(snapshot, plan, now)
        self._metrics.count_teams(self.state.teams)
        if self._lacks is not None:
            self._lacks(tuple(lacking(snapshot, plan)))
        if self._shadow is not None:
            self._shadow.say(snapshot, plan)
        else:
            self._reporter.waiting(snapshot, plan, now)
            self._carry_out(plan)
            recorder = self._recorder
            if self._forecaster is not None and recorder.known:
                work = self._forecaster.look(snapshot, plan, now, settings, recorder.calibration, recorder.count)
                if work is not None:
                    self._spawn(work)
            for demand in plan.demands:
                self._spawn(self._reporter.show(demand, now))
        return Rest.until(plan.wake_at, self._clock(), settle_s=max(PAUSE_S, 2 * took_s), idle_s=IDLE_S)

    def settings_in_force(self) -> Settings:
        """Return the settings of this process, with those of the newest valid ConfigMap in their place."""
        config = self._config.value if self._config is not None else None
        return config.applied_to(self.settings) if config is not None else self.settings

    def _carry_out(self, plan: Plan) -> None:
        binds = []
        for action in plan.actions:
            if isinstance(action, Bind):
                binds.append(action)
            elif isinstance(action, RemoveMember):
                self._spawn(self._writer.remove(action))
            elif isinstance(action, Refuse):
                self._spawn(self._reporter.refuse(action))
            elif isinstance(action, TryEviction | EvictMember):
                if self._evictor.begin(action):
                    self._spawn(self._evict(action, self.state.gangs[action.gang]))
            elif self._writer.begin(action):
                self._spawn(self._write(action))
        self._provisioner.submit(binds)

    def _bound(self, bind: Bind) -> None:
        self._reporter.pod_bound(bind)

    async def _evict(self, action: TryEviction | EvictMember, gang: Gang) -> None:
        if isinstance(action, EvictMember):
            refused, by = await self._evictor.evict(action), None
            if not refused and gang.placement is None and gang.backfilled:  # a single pod has no Placement
                self._metrics.backfill_asks.inc()
            until = self._clock() + SPARED_S
        else:
            refused, by = await self._evictor.try_all(action), self.state.gangs.get(action.by)
            until = gang.tried.until if gang.tried is not None else 0.0
        if refused:
            self._reporter.stays(gang, refused, until, by=by)

    async def _write(self, action: PlacementAction) -> None:
        gang = self.state.gangs[action.gang]
        if not await (self._mark_bound(action) if isinstance(action, MarkBound) else self._writer.write(action)):
            return
        if isinstance(action, TellToLeave):
            if action.reason == "Backfilled":
                self._metrics.backfill_asks.inc()
            self._reporter.preempting(gang, action.message)
        elif isinstance(action, StayOn):
            until = self._clock() + SPARED_S
            self.state.tried(gang, until, action.reason)
            self._reporter.stays(gang, action.reason, until)
        elif isinstance(action, WritePlacement) and not action.placement.spec.preempting:
            self._reporter.placed(gang, action.reason)
        elif isinstance(action, MarkBound):
            self._reporter.bound(gang)
        elif isinstance(action, ReleaseGang):
            self._metrics.releases.inc()
            self._reporter.released(gang, action.reason)

    async def _mark_bound(self, action: MarkBound) -> bool:
        """Write the status Bound when no binds are in flight, or at once if the complete gang lost a pod."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MARK_BOUND_WAIT_S) as wait:
                self._unmarked[action.gang] = wait
                await self._binder.quiet()
        del self._unmarked[action.gang]
        async with self._marking:
            return await self._writer.write(action)

    def _mark_now(self, uid: str) -> None:
        """Write the gang's status Bound at once: one of its pods is terminating, so the gang needs a new plan."""
        record = self.state.pods.get(uid)
        wait = self._unmarked.get(record.gang) if record is not None else None
        if wait is not None and not wait.expired():
            wait.reschedule(asyncio.get_running_loop().time())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
