"""Executes dry runs and evictions: a bounded number in flight, each by UID and with a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Conflict, NotFound, ServerTimeout, Unavailable
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import EvictMember, TryEviction
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Maximum number of evictions in flight, and of dry runs for one gang. The API server checks budgets for each."""
RETRY_S = 1.0
"""Delay before a refused eviction is retried, unless the API server sets a longer one."""
RETRY_MAX_S = 5.0
TRIED_S = 10.0
"""How long a successful dry run is valid."""
SPARED_S = 60.0
"""How long a gang is not a candidate after the eviction of a pod was refused."""


class Evictor:
    """Sends dry runs and evictions.

    Args:
        client: the API server.
        state: records every outcome.
        clock: seconds since the epoch.
        changed: called after each outcome that the scheduler should plan for.
        metrics: counts outcomes.
        request_timeout_s: time limit of one request.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        metrics: SchedulerMetrics,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._changed = changed
        self._metrics = metrics
        self._request_timeout_s = request_timeout_s
        self._under_way: set[str] = set()
        self._pace = asyncio.Semaphore(AT_ONCE)

    def begin(self, action: TryEviction | EvictMember) -> bool:
        """Record that the action starts. Return False if it is already in flight."""
        key = action.gang if isinstance(action, TryEviction) else action.uid
        if key in self._under_way:
            return False
        self._under_way.add(key)
        return True

    async def try_all(self, action: TryEviction) -> str:
        """Dry-run the eviction of the whole gang, after `begin`. Return why it is refused, "" if it is allowed."""
        pods, refused, spared_s = iter(action.pods), "", TRIED_S

        async def ask_on() -> None:
            nonlocal refused, spared_s
            for name, uid in pods:
                if refused:
                    return
                error = await self._request(action.namespace, name, uid, dry_run=True)
                if error is not None and not refused:
                    refused = _words(name, error)
                    spared_s = SPARED_S if _is_refusal(error) else RETRY_MAX_S

        try:
            await asyncio.gather(*(ask_on() for _ in range(min(AT_ONCE, len(action.pods)))))
            gang = self._state.gangs.get(action.gang)
            if gang is not None:
                self._state.tried(gang, self._clock() + spared_s, refused)
        finally:
            self._under_way.discard(action.gang)
            self._changed()
        return refused

    async def evict(self, action: EvictMember) -> str:
        """Evict a pod, after `begin`. Return why it was refused, "" if it was not."""
        try:
            async with self._pace:
                error = await self._request(action.namespace, action.pod, action.uid, dry_run=False)
            text, again_s = "", RETRY_MAX_S  # the watch reports the pod's end long before
            if error is not None:
                asked_s = error.retry_after_s if isinstance(error, ApiError) else None
                text, again_s = _words(action.pod, error), min(RETRY_MAX_S, max(RETRY_S, asked_s or 0.0))
                log.warning("evicting pod %s/%s: %s", action.namespace, action.pod, text)
            self._state.eviction_ended(action.uid, text, self._clock() + again_s)
        finally:
            self._under_way.discard(action.uid)
            self._changed()
        return text if error is not None and _is_refusal(error) else ""

    async def _request(self, namespace: str, name: str, uid: str, *, dry_run: bool) -> Exception | None:
        """Send an eviction. A pod that is gone or was replaced counts as evicted."""
        operation = "try" if dry_run else "evict"
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self._client.evict(name, namespace=namespace, uid=uid, dry_run=dry_run)
        except (ApiError, ConfigError, TimeoutError) as error:
            self._metrics.evictions.labels(operation, type(error).__name__).inc()
            return None if isinstance(error, NotFound | Conflict) else error
        self._metrics.evictions.labels(operation, "admitted").inc()
        return None


def _is_refusal(error: Exception) -> bool:
    """Return whether the API server refused the eviction; False if the outcome is unknown."""
    return isinstance(error, ApiError) and not isinstance(error, ServerTimeout | Unavailable)


def _words(pod: str, error: Exception) -> str:
    """Return text like "pod a-1: Cannot evict pod ...: The disruption budget b needs 2 healthy pods and has 2"."""
    if not isinstance(error, ApiError):
        return f"pod {pod}: {str(error) or 'no answer in time'}"
    return f"pod {pod}: {error.in_full}"
