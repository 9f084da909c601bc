"""Executes plans: the actions in order, up to the first one that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from muster.api import names
from muster.api.fixed_spec import effective
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import to_dict
from muster.trainingjobs.metrics import TrainingJobMetrics
from muster.trainingjobs.plan import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    Direct,
    Plan,
    RecordEvent,
    WriteStatus,
)
from muster.trainingjobs.pods.pod import PodSettings, build_pod, settings_for
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.snapshot import Refusal
from muster.trainingjobs.status.timeline import RestartLedger

log = logging.getLogger(__name__)

REQUESTS_AT_ONCE: Final = 32
REFUSED_MIN_S: Final = 1.0
REFUSED_MAX_S: Final = 60.0
EXPECT_S: Final = 10.0


class Executor:
    """Executes plans.

    Args:
        client: the API server.
        members: receive directives.
        events: receives Events.
        pods: settings that every pod gets.
        metrics: counts actions.
        wrote: called with the job as the API server returned it after a write.
        allows_host_paths: returns whether pods of a namespace may have hostPath volumes.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        client: Client,
        members: Members,
        events: EventRecorder,
        pods: PodSettings,
        metrics: TrainingJobMetrics,
        wrote: Callable[[TrainingJob, WriteStatus], None],
        clock: Callable[[], float] = steady_time,
        allows_host_paths: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """Create the executor without any memory of earlier actions."""
        self._client = client
        self._members = members
        self._events = events
        self._pods = pods
        self._metrics = metrics
        self._wrote = wrote
        self._clock = clock
        self._allows_host_paths = allows_host_paths
        self._ledger = RestartLedger(metrics)
        self._limit = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._created: dict[str, float] = {}
        self._refusals: dict[str, tuple[int, Refusal]] = {}

    def refusal(self, job_uid: str) -> Refusal | None:
        """Why the job's newest pod could not be created."""
        known = self._refusals.get(job_uid)
        return known[1] if known is not None else None

    def pod_seen(self, key: str) -> None:
        """Record that the cache has a pod, so that the executor no longer waits for it."""
        self._created.pop(key, None)

    def forget(self, job_uid: str) -> None:
        """Forget a deleted job."""
        self._refusals.pop(job_uid, None)
        self._ledger.forget(job_uid)

    async def execute(self, job: TrainingJob, plan: Plan) -> None:
        """Execute the plan. Raises ApiError at the first action that fails."""
        for kind, group in groupby(plan.actions, key=type):
            actions = list(group)
            if kind is CreatePod:
                await self._create(job, [each for each in actions if isinstance(each, CreatePod)])
            elif kind is DeletePod:
                await self._all(self._delete_pod(job, each) for each in actions if isinstance(each, DeletePod))
            else:
                for each in actions:
                    await self._one(job, each)

    async def _one(self, job: TrainingJob, action: Action) -> None:
        match action:
            case WriteStatus():
                await self._write(job, action)
            case Direct():
                if self._members.direct(job.uid, job.key, action.directive):
                    self._count("Direct", action.directive.desired)
            case RecordEvent():
                self._count("RecordEvent", action.reason)
                self._events.event(job, WARNING if action.warning else NORMAL, action.reason, action.message)
            case DeleteJob():
                self._count("DeleteJob", action.reason)
                await self._client.delete(
                    TrainingJob, job.name, namespace=job.namespace, uid=job.uid, propagation="Background"
                )
            case CreatePod() | DeletePod():
                raise AssertionError("done in groups")

    async def _write(self, job: TrainingJob, action: WriteStatus) -> None:
        changes = merge_patch(to_dict(job.status), to_dict(action.status))
        patch = {
            "metadata": {"uid": job.uid, "resourceVersion": job.metadata.resource_version},
            "status": changes,
        }
        written = await self._client.patch(TrainingJob, job.name, patch, namespace=job.namespace, subresource="status")
        self._count("WriteStatus", action.reason)
        self._ledger.wrote(job.uid, action.reason, action.status)
        if action.reason == "Stalled":
            self._members.stalled(job.uid)
        self._wrote(written, action)

    async def _create(self, job: TrainingJob, actions: Sequence[CreatePod]) -> None:
        now, runs_by = self._clock(), effective(job).job
        wanted = [each for each in actions if self._created.get(_pod_key(job, each), 0.0) < now]
        stop = asyncio.Event()
        await self._all(self._create_pod(runs_by, each, stop) for each in wanted)
        if wanted and not stop.is_set():
            self._refusals.pop(job.uid, None)

    async def _create_pod(self, job: TrainingJob, action: CreatePod, stop: asyncio.Event) -> None:
        if stop.is_set():
            return  # if one pod is refused, the next would be refused too; a later reconcile retries
        settings = settings_for(self._pods, job, self._allows_host_paths(job.namespace))
        pod = build_pod(job, action.slot, action.attempt, action.excluded_nodes, settings)
        try:
            await self._client.create(pod, kind=Pod, retry_lost=True)
        except AlreadyExists as error:
            if await self._is_foreign(pod["metadata"]["name"], job):
                stop.set()
                what = "it does not belong to this job: delete it, or give the job another name"
                self._refused(job, AlreadyExists(error.status, error.reason, f"{error.message}, and {what}"))
                return
        except (Forbidden, Invalid) as error:
            stop.set()
            self._refused(job, error)
            return
        except NotFound as error:  # the namespace is gone, or the job's owner reference is refused
            stop.set()
            self._refused(job, error)
            return
        self._created[_pod_key(job, action)] = self._clock() + EXPECT_S
        self._count("CreatePod", action.reason)

    async def _is_foreign(self, name: str, job: TrainingJob) -> bool:
        """Returns whether a pod of another owner has this name. Its end would not start a reconcile of this job."""
        try:
            pod = await self._client.get(Pod, name, job.namespace)
        except NotFound:
            return False
        return pod.metadata.labels.get(names.LABEL_GANG) != job.name

    def _refused(self, job: TrainingJob, error: ApiError) -> None:
        times = self._refusals[job.uid][0] + 1 if job.uid in self._refusals else 0
        delay_s = min(REFUSED_MAX_S, REFUSED_MIN_S * 2.0 ** min(times, 10))
        refusal = Refusal(error.reason or type(error).__name__, error.message, self._clock() + delay_s)
        self._refusals[job.uid] = (times, refusal)
        log.warning("%s: a pod was refused, again in %.0f s: %s", job.key, delay_s, error.message)

    async def _delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        try:
            await self._client.delete(
                Pod, action.name, namespace=job.namespace, uid=action.uid, grace_s=0 if action.force else None
            )
        except (NotFound, Conflict):
            return  # the pod is gone, or another pod has its name
        self._count("DeletePod", action.reason)

    async def _all(self, requests: Iterable[Awaitable[None]]) -> None:
        """Run a limited number of requests in parallel. When all have ended, raise the first error."""

        async def bounded(request: Awaitable[None]) -> None:
            async with self._limit:
                await request

        results = await asyncio.gather(*(bounded(each) for each in requests), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _count(self, action: str, reason: str) -> None:
        self._metrics.actions.labels(action, reason).inc()


def _pod_key(job: TrainingJob, action: CreatePod) -> str:
    return f"{job.namespace}/{names.pod_name(job.name, action.slot, action.attempt)}"


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7386): changed and new keys, null for removed ones, whole lists."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
