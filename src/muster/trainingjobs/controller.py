"""The controller of training jobs: builds snapshots from caches and supervisors' reports, and executes plans."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.handover import Handover
from muster.api.run_record import RunRecord
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import CheckpointStatus, StartForecast
from muster.api.trimmed import FORMS
from muster.kube.client import JSON_PATCH, Client
from muster.kube.clock import steady_time
from muster.kube.controller import Controller
from muster.kube.errors import Conflict, Invalid, NotFound
from muster.kube.events import WARNING, EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import LeaderElector, Term
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import to_dict
from muster.trainingjobs.attempts import checkpoints
from muster.trainingjobs.attempts.attempt import SILENCE
from muster.trainingjobs.attempts.ends import Ends
from muster.trainingjobs.attempts.restoring import Verdict
from muster.trainingjobs.cache import Caches
from muster.trainingjobs.decide import ENDED, decide
from muster.trainingjobs.executor import Executor
from muster.trainingjobs.metrics import training_job_metrics
from muster.trainingjobs.observed import Observed
from muster.trainingjobs.plan import WriteStatus
from muster.trainingjobs.pods.node_use import NodeCounts
from muster.trainingjobs.pods.pod import PodSettings
from muster.trainingjobs.pods.slots import slots_of
from muster.trainingjobs.rendezvous.agreement import Agreement
from muster.trainingjobs.rendezvous.cache_tickets import CacheTickets
from muster.trainingjobs.rendezvous.gonejobs import GoneJobs
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.overload import Strain
from muster.trainingjobs.rendezvous.server import CheckpointProblem, ReportRequest, RestoreRequest, Stale, confirmed
from muster.trainingjobs.shadow import Shadow, Suppose
from muster.trainingjobs.snapshot import EXCLUSION_S, JobSnapshot, Member, Wait, Watched
from muster.trainingjobs.status import forecasts, stalls
from muster.trainingjobs.status.builder import at, shortened
from muster.trainingjobs.status.progress import Pacer, ProgressBook
from muster.trainingjobs.status.repeats import faults_repeat

log = logging.getLogger(__name__)

NAME: Final = "trainingjobs"
_SWEEP_S: Final = 1.0
_SILENT_S: Final = 1.0
_PROBLEM_S: Final = 30.0
"""Least time between two Events of a job about checkpoints that were not saved."""
_REST: Final = 4.0
"""Pause of a job after a reconcile, as a multiple of its duration: bursts of events use at most a fifth of a core."""


class TrainingJobController:
    """Runs training jobs in all namespaces.

    Args:
        client: the API server.
        elector: gates everything; without one the controller works at once.
        cluster_secret: source of the attempts' keys.
        pods: settings for every pod.
        identity: name of this process in Events.
        exclusion_s: a replacement pod waits this long for another node before it may use an excluded one.
        shadow: if set, the controller writes nothing. It logs and counts actions, and calls this with the pods that it
            would create.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked by the loops.
        registry: where metrics go.
        clock: seconds since the epoch.
        rng: source of jitter.
    """

    def __init__(
        self,
        client: Client,
        *,
        elector: LeaderElector | None,
        cluster_secret: bytes,
        pods: PodSettings,
        identity: str = "muster",
        exclusion_s: float = EXCLUSION_S,
        shadow: Suppose | None = None,
        informers: Informers | None = None,
        progress: Progress | None = None,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = steady_time,
        rng: random.Random | None = None,
    ) -> None:
        """Create the parts; `run` makes the first request."""
        client = elector.fence(client) if elector is not None else client
        self._client = client
        self._elector = elector
        self._exclusion_s = exclusion_s
        self._progress = progress
        self._clock = clock
        self._metrics = training_job_metrics(registry)
        self._shadow = Shadow(shadow, pods, self._metrics) if shadow is not None else None
        self.strain = Strain(clock)
        tickets = CacheTickets(cluster_secret, clock)
        self.members = Members(cluster_secret, self._member_changed, clock, rng, tickets.part)
        self.caches = Caches(
            client,
            informers or Informers(client, FORMS, progress=progress, rng=rng),
            clock,
            rng,
            host_paths=pods.cache is not None and pods.cache.mode == "hostPath",
        )
        self.agreement = Agreement(
            self._newest, self.members, lambda key: self.controller.queue.add(key), self._metrics
        )
        self._events = EventRecorder(client, "muster-trainingjobs", instance=identity, clock=clock, rng=rng)
        self._executor = Executor(
            client,
            self.members,
            self._events,
            pods,
            self._metrics,
            self._wrote,
            clock,
            allows_host_paths=self.caches.allows_host_paths,
        )
        self._gpu_counts = NodeCounts(lambda: self.caches.nodes.store.values(), pods.team_key)
        self._undecided: set[str] = set()
        self._book = ProgressBook()
        self._pacer = Pacer()
        self._observed = Observed()
        self._ends = Ends()
        self._quiet: dict[str, Watched] = {}
        self._written: dict[str, TrainingJob] = {}
        self._runs: dict[str, RunRecord] = {}
        self._term: Term | None = None
        self._leading_since = 0.0
        self._rest_until: dict[str, float] = {}
        self._problem_due: dict[str, float] = {}
        self._waits_for: dict[str, Wait] = {}
        self._forecasts: dict[str, StartForecast] = {}
        self._forecasts_dropped = False
        self._handover = Handover()
        self._gone = GoneJobs(client, clock)
        self.controller = Controller(
            NAME, self._reconcile, informers=self.caches.required, elector=elector, progress=progress, rng=rng
        )
        self._metrics.members.set_function(lambda: len(self.members))
        self._metrics.polls.set_function(lambda: self.members.polling)
        self._metrics.stalled.set_function(lambda: sum(map(stalls.is_stalled, self.caches.jobs.store.values())))
        self._metrics.repeated_faults.set_function(self._count_repeats)
        self._follow()

    def _count_repeats(self) -> int:
        now = self._clock()
        return sum(faults_repeat(job, now) for job in self.caches.jobs.store.values())

    @property
    def serving(self) -> bool:
        """Returns whether this replica leads and its caches are complete."""
        leading = self._elector is None or self._elector.leading
        if not leading or not self.controller.working or self._shadow is not None:
            return False
        self._begin_term(self._clock())
        return True

    def not_ready(self) -> str | None:
        """Returns what is missing before this replica can take over; a check for /readyz."""
        return self.controller.not_ready()

    def pod(self, key: str) -> Pod | None:
        """Return a worker pod by namespace/name."""
        return self.caches.pods.get(key)

    async def is_gone(self, job_key: str, job_uid: str) -> bool:
        """Returns whether the API server has shown that a job which is not in the cache does not exist any more."""
        job = self.caches.jobs.get(job_key)
        return (job is None or job.uid != job_uid) and await self._gone.is_gone(job_key, job_uid)

    async def run(self) -> None:
        """Work until cancelled."""
        async with self._events, asyncio.TaskGroup() as group:
            group.create_task(self.caches.run())
            group.create_task(self.controller.run())
            group.create_task(self._sweep())
            group.create_task(self.strain.run())

    # -- events

    def _follow(self) -> None:
        self.controller.watch(self.caches.jobs)
        self.controller.watch(self.caches.placements)
        self.caches.jobs.add_handler(self._job_changed)
        self.caches.pods.add_handler(self._pod_changed)
        self.caches.nodes.add_handler(self._node_changed)
        self.caches.hardware_seen = self._queue_jobs_on

    def _job_changed(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        self._metrics.moved(old.status.phase if old else None, new.status.phase if new else None)
        gone = old if old is not None and (new is None or new.uid != old.uid) else None
        if gone is not None:
            self.members.forget_job(gone.uid)
            self._executor.forget(gone.uid)
            if self._shadow is not None:
                self._shadow.forget(gone.uid)
            self._book.forget(gone.uid)
            self._observed.forget(gone.uid)
            self._ends.forget(gone.uid)
            self._quiet.pop(gone.uid, None)
            self._written.pop(gone.uid, None)
            self._runs.pop(gone.uid, None)
            self.agreement.forget(gone.uid)
            self._problem_due.pop(gone.uid, None)
            self._pacer.forget(gone.key)
            self._rest_until.pop(gone.key, None)
            self._waits_for.pop(gone.key, None)
            self._forecasts.pop(gone.key, None)
            self._undecided.discard(gone.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        self._executor.pod_seen(pod.key)
        for owner in pod.metadata.owner_references:
            if owner.kind == "TrainingJob":
                self._say_soon(f"{pod.namespace}/{owner.name}")
                if new is None:
                    self._ends.pod_gone(owner.uid, pod, self.members.forget(owner.uid, pod.uid))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if self._gpu_counts.changed(old, new):
            for key in self._undecided:
                self.controller.queue.add(key)
        if old is not None and new is not None and _vital(old) == _vital(new):
            return
        node = new or old
        assert node is not None
        self._queue_jobs_on(node.name)
        for key in self.caches.jobs_avoiding(node.name):
            self.controller.queue.add(key)

    def _queue_jobs_on(self, node: str) -> None:
        for key in self.caches.jobs_on(node):
            self.controller.queue.add(key)

    def _member_changed(self, key: str) -> None:
        self._say_soon(key)

    def _say_soon(self, key: str) -> None:
        """Reconcile the job now, and again when its progress may be written to the status."""
        self.controller.queue.add(key)
        self.controller.queue.add_after(key, self._pacer.want(key, self._clock()))

    def waits(self, key: str, reason: str, message: str) -> None:
        """Store why the scheduler has no nodes for a job.

        It is written to the status when the job's next write is due.
        """
        self._begin_term(self._clock())
        known = self.caches.jobs.get(key) is not None
        if reason or known:
            self._waits_for[key] = Wait(reason, message)
        else:
            self._waits_for.pop(key, None)
        if known:
            self._say_soon(key)

    def forecast(self, key: str, forecast: StartForecast | None) -> None:
        """Store when the scheduler expects a job to start; None if the job does not wait any more.

        It is written to the status at a limited rate.
        """
        now = self._clock()
        self._begin_term(now)
        job = self.caches.jobs.get(key)
        if forecast is None or job is None or self._forecasts_dropped:
            self._forecasts.pop(key, None)
            return
        self._forecasts[key] = forecast
        if forecasts.is_due(job.status, forecast, now):
            self.controller.queue.add(key)

    def follow_leaving(self, handover: Handover) -> None:
        """Delay the next attempt of jobs whose pods remediation is evicting."""
        self._handover = handover

        def gone(gangs: frozenset[str]) -> None:
            for key in gangs:
                self.controller.queue.add(key)

        handover.gone = gone

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.members.sweep()

    # -- reconcile

    async def _reconcile(self, key: str) -> float | None:
        now = self._clock()
        self._begin_term(now)
        job = self._newest(key)
        if job is None:
            return None
        rest_s = self._rest_until.get(key, 0.0) - now
        if rest_s > 0:
            return rest_s
        started = time.perf_counter()
        snapshot = self._watched(self._snapshot(job, now), now)
        if self._shadow is not None:
            self._shadow.look(snapshot, now)
            return None
        plan = decide(snapshot, now)
        took_s = time.perf_counter() - started
        self._metrics.decide_seconds.observe(took_s)
        self._rest_until[key] = now + _REST * took_s
        await self._executor.execute(job, plan)
        wrote = any(isinstance(action, WriteStatus) for action in plan.actions)
        if wrote or snapshot.progress_due:
            self._pacer.wrote(key, now)
        if wrote:
            self._say_soon(key)
            return 0.0  # the next decision depends on this write
        if self._executor.refusal(job.uid) is not snapshot.refusal:
            return 0.0  # report the refusal and retry later: no event would start this reconcile again
        moments = (plan.wake_at, self._pacer.moment(key))
        return min((max(0.0, at - self._clock()) for at in moments if at is not None), default=None)

    def _begin_term(self, now: float) -> None:
        """Start a new term as leader: forget all supervisors, which must report again."""
        term = self._elector.term if self._elector is not None else None
        if self._leading_since == 0.0 or term is not self._term:
            self._term, self._leading_since = term, now
            self.members.clear()
            self.agreement.clear()
            self._ends.clear()
            self._waits_for.clear()
            self._forecasts.clear()
            self._forecasts_dropped = False
            self._runs.clear()
            self._quiet.clear()

    def _newest(self, key: str) -> TrainingJob | None:
        """Return the newer of the cached job and the job that our last write returned."""
        job = self.caches.jobs.get(key)
        if job is None:
            return None
        written = self._written.get(job.uid)
        if written is None:
            return job
        if _version(job) >= _version(written):
            del self._written[job.uid]
            return job
        return written

    def _wrote(self, job: TrainingJob, action: WriteStatus) -> None:
        self._written[job.uid] = job
        self.agreement.wrote(job, action)
        log.info("%s: %s: %s", job.key, action.reason, action.status.message)
        if action.reason == "Forecast" and job.status.start_forecast is None:
            self._forecasts.clear()
            self._forecasts_dropped = True  # else the same estimate would be written for ever
            log.warning(
                "%s: the API server dropped status.startForecast: the CustomResourceDefinition trainingjobs.muster.dev "
                "is older than this controller; apply the one of this version to see when jobs start",
                job.key,
            )
        record = action.status.run
        if record is None:
            self._runs.pop(job.uid, None)
            self._ends.forget(job.uid)
            return
        self._runs[job.uid] = record
        if job.status.run is None:
            log.warning(
                "%s: the API server dropped status.run: the CustomResourceDefinition trainingjobs.muster.dev is "
                "older than this controller; apply the one of this version, so that a new leader knows the attempt",
                job.key,
            )

    def _snapshot(self, job: TrainingJob, now: float) -> JobSnapshot:
        pods = self.caches.pods_of(job)
        placement = self.caches.placements.get(job.key)
        names = {pod.spec.node_name for pod in pods if pod.spec.node_name}
        at_fault = {fault.node for fault in job.status.faults[-1:]}
        nodes = self.caches.nodes_named(names | at_fault | set(job.status.excluded_nodes))
        members = self.members.of(job.uid)
        ours = placement is not None and placement.spec.gang_uid in ("", job.uid)
        return JobSnapshot(
            job=job,
            pods=pods,
            placement=placement if ours else None,
            nodes=nodes,
            leases=self._leases(job, pods, members, now),
            members=members,
            ended=self._ends.of(job.uid),
            seen=self._observed.look(job.uid, pods, nodes, now),
            run=self._runs.get(job.uid),
            source=self._source(job),
            progress=self._book.newest(job.uid, job.status.attempt),
            restoring=self.agreement.seen(job.uid),
            hardware=self.caches.hardware_of(nodes),
            waits_for=self._waits_for.get(job.key),
            forecast=self._forecasts.get(job.key),
            leaving=job.key in self._handover.going,
            refusal=self._executor.refusal(job.uid),
            gpu_counts=self._counts_for(job),
            leading_since=self._leading_since,
            contact_trusted=self.members.contact_trusted(),
            strained_at=self.strain.last,
            progress_due=self._pacer.due(job.key, now),
            exclusion_s=self._exclusion_s,
        )

    def _source(self, job: TrainingJob) -> TrainingJob | None:
        """Return the job from whose checkpoint this job starts."""
        spec = job.spec.checkpoint
        if job.status.attempt > 0 or spec is None or spec.from_ is None or not spec.from_.job:
            return None
        found = self.caches.jobs.get(f"{job.namespace}/{spec.from_.job}")
        return found if found is not None and found.uid != job.uid else None

    def _counts_for(self, job: TrainingJob) -> Mapping[int, int]:
        """Returns GPU count -> number of nodes if the next attempt decides how the job uses nodes; else nothing."""
        starts = job.status.attempt <= 0 or job.status.phase in ("Suspended", "Stopping")
        if not starts or job.spec.suspend or job.status.phase in ENDED:
            self._undecided.discard(job.key)
            return {}
        self._undecided.add(job.key)
        return self._gpu_counts.of(job)

    def _watched(self, snapshot: JobSnapshot, now: float) -> JobSnapshot:
        """Add to the snapshot for how long the attempt has not reported, counted from one reconcile to the next."""
        uid = snapshot.job.uid
        quiet = stalls.watched(self._quiet.get(uid), snapshot, slots_of(snapshot)[0], now)
        if quiet is None:
            self._quiet.pop(uid, None)
            return snapshot
        self._quiet[uid] = quiet
        return replace(snapshot, quiet=quiet)

    def _leases(
        self, job: TrainingJob, pods: tuple[Pod, ...], members: Mapping[str, Member], now: float
    ) -> dict[str, float]:
        """Returns renewal times of the nodes whose supervisor is silent, or that were excluded for silence.

        Excluded nodes count only while a replacement waits. Leases are read one by one: each node renews its own every
        10 s.
        """
        if job.status.phase in (*ENDED, "Pending", "Suspended"):
            return {}
        waits = job.status.phase == "Restarting" and any(not pod.spec.node_name for pod in pods)
        doubted = bool(job.status.faults) and job.status.faults[-1].rule == SILENCE
        silent = list(job.status.excluded_nodes) if waits and doubted else []
        for pod in pods:
            member = members.get(pod.uid)
            if pod.status.phase != "Running" or not pod.spec.node_name:
                continue
            if member is None or (member.silent_since is not None and now - member.silent_since > _SILENT_S):
                silent.append(pod.spec.node_name)
        return self.caches.leases_of(silent, lambda: self.controller.queue.add(job.key)) if silent else {}

    # -- reports of ranks

    async def report(self, job_key: str, job_uid: str, report: ReportRequest) -> None:
        """Take a report of the current attempt; a checkpoint is in the status on return. Raises Stale, ApiError."""
        job = self._newest(job_key)
        if job is None or job.uid != job_uid:
            raise Stale(0)
        current = job.status.attempt
        if report.attempt != current or job.status.phase in ENDED:
            raise Stale(current)
        if report.checkpoint is not None and checkpoints.is_of_older_attempt(job.status, report.checkpoint.path):
            raise Stale(current)
        if report.step is not None and self._book.report(
            job_uid, current, report.step, report.total_steps, report.metrics, self._clock()
        ):
            self._say_soon(job_key)
            if job.status.faults and job.status.time_to_useful_seconds is None:
                self.controller.queue.add(job_key)
        if report.checkpoint_problem is not None:
            self._not_saved(job, report.checkpoint_problem)
        if report.checkpoint is None:
            return
        known = job.status.last_checkpoint
        if known is not None and known.attempt == current and known.step > report.checkpoint.step:
            return
        await self._commit(job, confirmed(report.checkpoint, current, at(self._clock())))
        self._metrics.saved(report.checkpoint.blocked_seconds, report.checkpoint.upload_seconds)

    async def restore(self, job_key: str, job_uid: str, pod: Pod, said: RestoreRequest) -> Verdict:
        """Take a node's result for the checkpoint that it restores; see `Agreement.restore`."""
        return await self.agreement.restore(job_key, job_uid, pod, said)

    def _not_saved(self, job: TrainingJob, problem: CheckpointProblem) -> None:
        """Write an Event about a checkpoint that could not be saved, at a limited rate. The job runs on."""
        now = self._clock()
        if now < self._problem_due.get(job.uid, 0.0):
            return
        self._problem_due[job.uid] = now + _PROBLEM_S
        last = job.status.last_checkpoint
        kept = f"a restart would begin from step {last.step}" if last is not None else "the job has no checkpoint yet"
        text = f"the checkpoint of step {problem.step} was not saved: {problem.message}; {kept} ({problem.path})"
        self._metrics.not_saved.inc()
        self._events.event(job, WARNING, "CheckpointNotSaved", shortened(text))

    async def _commit(self, job: TrainingJob, checkpoint: CheckpointStatus) -> None:
        """Write a checkpoint. A precondition at the API server ensures that its attempt is still the current one."""
        good = tuple(each for each in job.status.quarantined_checkpoints if each.path != checkpoint.path)
        status = replace(job.status, quarantined_checkpoints=good)  # a program may write to the same path again
        listed = checkpoints.with_newest(status, checkpoint)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": job.uid},
            {"op": "test", "path": "/status/attempt", "value": checkpoint.attempt},
            {"op": "add", "path": "/status/lastCheckpoint", "value": to_dict(checkpoint)},
            {"op": "add", "path": "/status/checkpoints", "value": [to_dict(each) for each in listed]},
        ]
        if good != job.status.quarantined_checkpoints:
            bad = [to_dict(each) for each in good]
            patch.append({"op": "add", "path": "/status/quarantinedCheckpoints", "value": bad})
        try:
            written = await self._client.patch(
                TrainingJob,
                job.name,
                patch,
                namespace=job.namespace,
                subresource="status",
                content_type=JSON_PATCH,
            )
        except (Invalid, Conflict):
            fresh = await self._client.get(TrainingJob, job.name, job.namespace)
            if fresh.uid == job.uid and fresh.status.attempt == checkpoint.attempt:
                raise  # refused for another reason than a stale attempt
            raise Stale(fresh.status.attempt) from None
        except NotFound:
            raise Stale(0) from None
        known = self._written.get(job.uid)
        if known is None or _version(written) > _version(known):
            self._written[job.uid] = written


def _vital(node: Node) -> tuple[object, ...]:
    """Return the fields of a node that matter for jobs. Heartbeats do not change them."""
    return node.uid, node.spec.unschedulable, tuple((each.type, each.status) for each in node.status.conditions)


def _version(job: TrainingJob) -> int:
    """Resource versions of one object may be compared as numbers.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions (1.35 and later say so).
    """
    text = job.metadata.resource_version
    return int(text) if text.isdecimal() else 0
