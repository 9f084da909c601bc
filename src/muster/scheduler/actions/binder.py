"""Executes binds: many in flight, each with the pod's UID and a deadline. Each outcome is recorded in the state."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from muster.api.names import ANNOTATION_BACKFILLED
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Conflict, Forbidden, Invalid, NotFound
from muster.kube.executor import Executor
from muster.kube.objects.meta import K
from muster.kube.objects.pod import Pod
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import Bind
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

WORKERS = 48
"""Maximum number of binds in flight. This many keep one API server busy."""
RETRY_S = 1.0
QUIET_S = 1.0
"""A burst of binds has ended if there was no bind for this time. Shorter pauses occur between small gangs."""


class Binder:
    """A queue of binds and the workers that empty it.

    Args:
        client: the API server.
        state: records every start and outcome.
        clock: seconds since the epoch.
        changed: called after each outcome that the scheduler should plan for.
        bound: called for each pod that was bound.
        metrics: counts outcomes.
        request_timeout_s: time limit of one bind, including its retries.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        bound: Callable[[Bind], None],
        metrics: SchedulerMetrics,
        request_timeout_s: float = 10.0,
        workers: int = WORKERS,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._changed = changed
        self._bound = bound
        self._metrics = metrics
        self._bound_metric = metrics.binds.labels("bound")
        self._request_timeout_s = request_timeout_s
        self._workers = workers
        self._executor = Executor("scheduler", at_once=workers, timeout_s=request_timeout_s)
        self._queue: deque[Bind] = deque()
        self._under_way = 0
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._calming: asyncio.TimerHandle | None = None

    def submit(self, bind: Bind) -> None:
        """Queue a bind; until its outcome is known, decide ignores the pod."""
        self._state.begin_bind(bind.uid, bind.node)
        self._queue.append(bind)
        self._work.set()
        self._stir()

    async def quiet(self) -> None:
        """Wait until no bind has been in flight for QUIET_S."""
        await self._quiet.wait()

    async def run(self) -> None:
        """Work until cancelled. Requests in flight are abandoned; the next leader reads their outcome."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._worker(), name=f"binder-{number}")
        finally:
            self._stir()

    def _stir(self) -> None:
        self._quiet.clear()
        if self._calming is not None:
            self._calming.cancel()
            self._calming = None

    async def _worker(self) -> None:
        while True:
            while self._queue:
                self._under_way += 1
                try:
                    await self._bind(self._queue.popleft())
                finally:
                    self._under_way -= 1
            if not self._under_way and not self._quiet.is_set() and self._calming is None:
                self._calming = asyncio.get_running_loop().call_later(QUIET_S, self._quiet.set)
            self._work.clear()
            await self._work.wait()

    async def _bind(self, bind: Bind) -> None:
        notes = {ANNOTATION_BACKFILLED: bind.backfilled_for} if bind.backfilled_for else None
        request = partial(
            self._client.bind, bind.pod, bind.node, namespace=bind.namespace, uid=bind.uid, annotations=notes
        )
        result = await self._executor.run(f"binding pod {bind.namespace}/{bind.pod} to node {bind.node}", request)
        if result.error is None:
            self._bound_metric.inc()
            self._state.end_bind(bind.uid, self._clock(), node=bind.node)
            self._bound(bind)
            if not self._queue:
                self._changed()
            return
        self._metrics.binds.labels(type(result.error).__name__).inc()
        await self._look(bind, result.error, result.why)
        self._changed()

    async def _look(self, bind: Bind, error: Exception, text: str) -> None:
        """Read the pod after a bind that failed or got no answer, and update the state.

        An earlier try of this bind may have succeeded.
        """
        now = self._clock()
        pod = None if isinstance(error, NotFound) else await self._read(bind)
        if pod is not None and pod.uid == bind.uid and pod.spec.node_name:
            self._state.end_bind(bind.uid, now)
            self._state.set_pod(pod, now)
            return
        gang = self._state.gangs.get(bind.gang)
        if isinstance(error, Forbidden | Invalid) and gang is not None:
            self._state.avoid(gang, max(bind.slot, 0), bind.node)  # a policy refused this node; others may be allowed
        self._state.end_bind(bind.uid, now, error=text, retry_at=now + RETRY_S)
        if pod is not None and pod.uid == bind.uid and isinstance(error, Conflict):
            self._state.set_pod(pod, now)

    async def _read(self, bind: Bind) -> Pod | None:
        return await read(self._client, Pod, bind.pod, bind.namespace, self._request_timeout_s)


async def read(client: Client, kind: type[K], name: str, namespace: str | None, timeout_s: float) -> K | None:
    """Return the object; None if it is gone or the API server does not answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await client.get(kind, name, namespace)
    except (ApiError, ConfigError, TimeoutError) as error:
        if not isinstance(error, NotFound):
            log.warning("reading %s %s: %s", kind.RESOURCE.kind, name, str(error) or "no answer in time")
        return None
