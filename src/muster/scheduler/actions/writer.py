"""Writes placements and removes members. Every write has a precondition; an unknown outcome is read back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from muster.api.placement import Placement, PlacementStatus
from muster.api.training_job import TrainingJob
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.clock import instant
from muster.kube.errors import ApiError, Conflict, NotFound
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.objects.pod import Pod
from muster.scheduler.actions.binder import read
from muster.scheduler.gangs.placements import (
    TRAINING_JOB,
    bound_status,
    leaving_status,
    placed_slots,
    staying_status,
    with_status,
)
from muster.scheduler.gangs.priority import job_facts
from muster.scheduler.informers.owners import expect_known
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import (
    DeletePlacement,
    MarkBound,
    ReleaseGang,
    RemoveMember,
    StayOn,
    TellToLeave,
    WritePlacement,
)
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

PlacementAction = WritePlacement | DeletePlacement | MarkBound | ReleaseGang | TellToLeave | StayOn
RETRY_S = 1.0
AT_ONCE = 64
"""Writes in flight."""


class PlacementWriter:
    """Executes a plan's writes of placements; `state` records each write from its start.

    Args:
        client: the API server.
        state: records every start and outcome.
        clock: seconds since the epoch.
        changed: called after each outcome.
        metrics: counts outcomes.
        bind_deadline_s: time limit for binding a gang.
        request_timeout_s: time limit of one write, including its retries.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        metrics: SchedulerMetrics,
        bind_deadline_s: float,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._changed = changed
        self._metrics = metrics
        self._bind_deadline_s = bind_deadline_s
        self._request_timeout_s = request_timeout_s
        self._executor = Executor("scheduler", at_once=AT_ONCE, timeout_s=request_timeout_s)
        self._removing: set[str] = set()
        self._not_before: dict[str, float] = {}

    def begin(self, action: PlacementAction) -> bool:
        """Record that the write starts. Return False if one is in flight, or was just refused."""
        gang = self._state.gangs.get(action.gang)
        if gang is None or gang.writing or self._clock() < self._not_before.get(action.gang, 0.0):
            return False
        self._not_before.pop(action.gang, None)
        self._state.begin_write(gang, action.placement if isinstance(action, WritePlacement) else None)
        return True

    async def write(self, action: PlacementAction) -> bool:
        """Write, after `begin`. Return whether the API server holds the intended result."""
        gang = self._state.gangs[action.gang]
        operation = type(action).__name__
        result = await self._executor.run(f"{operation} {gang.full_name}", partial(self._request, action))
        if result.error is not None:
            self._metrics.placements.labels(operation, type(result.error).__name__).inc()
            if result.outcome is not WriteOutcome.OVERTAKEN:
                self._not_before = {key: at for key, at in self._not_before.items() if key in self._state.gangs}
                self._not_before[action.gang] = self._clock() + RETRY_S
            await self._look(action, isinstance(result.error, NotFound))
            asyncio.get_running_loop().call_later(RETRY_S, self._changed)
            return False
        self._metrics.placements.labels(operation, "written").inc()
        self._state.end_write(gang, result.value, deleted=result.value is None)
        self._changed()
        return True

    def _request(self, action: PlacementAction) -> Awaitable[Placement | None]:
        if isinstance(action, WritePlacement):
            return self._place(action)
        if isinstance(action, DeletePlacement):
            return self._delete(action)
        if isinstance(action, MarkBound):
            status = bound_status(action.placement, self._clock(), self._bind_deadline_s)
        elif isinstance(action, TellToLeave):
            status = leaving_status(action.placement, self._clock(), action.reason, action.message)
        elif isinstance(action, StayOn):
            status = staying_status(action.placement)
        else:
            status = PlacementStatus(phase="Released", bound_time=action.placement.status.bound_time)
        return self._client.replace(with_status(action.placement, status), subresource="status")

    async def _place(self, action: WritePlacement) -> Placement:
        gang = self._state.gangs[action.gang]
        had = placed_slots(gang.seen).keys()
        if any(slot.slot not in had for slot in action.placement.spec.slots):
            await expect_known(self._client, self._state, gang, self._clock())
        return await (self._client.create if action.create else self._client.replace)(action.placement)

    async def _delete(self, action: DeletePlacement) -> None:
        placement = action.placement
        if self._state.gangs[action.gang].owner_missing:
            await self._expect_no_owner(placement)
        await self._client.delete(Placement, placement.name, namespace=placement.namespace, uid=placement.uid)

    async def _expect_no_owner(self, placement: Placement) -> None:
        """Check that an orphan's job does not exist: the watch on jobs may lag behind the watch on pods.

        Raises:
            Conflict: the job exists; the state is updated.
        """
        for owner in placement.metadata.owner_references:
            if owner.kind != TRAINING_JOB:
                continue
            try:
                job = await self._client.get(TrainingJob, owner.name, placement.namespace)
            except NotFound:
                continue
            if job.uid == owner.uid:
                self._state.jobs.set(job.uid, job_facts(job))
                raise Conflict(409, "Conflict", f"the job {job.name} is there")

    async def _look(self, action: PlacementAction, missing: bool) -> None:
        """Read what the API server holds now, and update the state."""
        gang = self._state.gangs[action.gang]
        placement = action.placement
        found: Placement | None = None
        if not missing:
            found = await read(self._client, Placement, placement.name, placement.namespace, self._request_timeout_s)
        if missing and gang.seen is not None and gang.seen.uid == placement.uid:
            self._state.end_write(gang, None, deleted=True)
            return
        self._state.end_write(gang, None)
        if found is not None:
            self._state.set_placement(found, self._clock())

    async def remove(self, action: RemoveMember) -> None:
        """Mark the pod as disrupted, then delete it, each with its UID as precondition."""
        if action.uid in self._removing:
            return
        self._removing.add(action.uid)
        try:
            await self._executor.run(f"removing pod {action.namespace}/{action.pod}", partial(self._remove, action))
        finally:
            self._removing.discard(action.uid)
            self._changed()

    async def _remove(self, action: RemoveMember) -> None:
        await self._disrupted(action)
        await self._client.delete(Pod, action.pod, namespace=action.namespace, uid=action.uid)

    async def _disrupted(self, action: RemoveMember) -> None:
        """Set DisruptionTarget, so that owners and pod failure policies do not blame the pod (KEP-3329)."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": action.why,
            "message": action.reason,
            "lastTransitionTime": instant(self._clock()),
        }
        try:
            await self._client.patch(
                Pod,
                action.pod,
                {"metadata": {"uid": action.uid}, "status": {"conditions": [condition]}},
                namespace=action.namespace,
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except NotFound:
            raise
        except ApiError as error:
            log.warning("marking pod %s/%s as disrupted: %s", action.namespace, action.pod, error)
