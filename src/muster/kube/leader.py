"""Elects one leader by a Lease (the protocol of client-go's leaderelection).

A Lease is not a fence: requests of the old leader may still be in flight when the new one starts. So a leader checks
immediately before each write that it still leads (`LeaderElector.fence`). Each term has the latest time at which the
previous holder can have started a request. A new leader waits until such requests have ended. A leader that stops
normally releases the lease. If one of its writes may still be in flight, the lease names it for one more second.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)

LEASE_DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
RETRY_PERIOD_S = 2.0
_RELEASE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Term:
    """One term as leader. Times are the event loop's.

    Attributes:
        acquired_at: when this process got the lease.
        previous_holder: the last holder, which may be this process itself. Its requests may still be in flight. Empty
            if there was none, or if it released the lease.
        previous_deadline: the latest moment at which the previous holder can have started a request.
        transitions: how often the lease changed hands: grows with each term.
    """

    acquired_at: float
    previous_holder: str
    previous_deadline: float
    transitions: int

    def fenced_at(self, fence_s: float) -> float:
        """Return from when on no request of the previous holder can take effect: `fence_s` after it stopped."""
        return max(self.acquired_at, self.previous_deadline + fence_s) if self.previous_holder else self.acquired_at

    async def outwait(self, fence_s: float, who: str) -> None:
        """Wait until no request of the previous holder can take effect any more."""
        wait_s = self.fenced_at(fence_s) - asyncio.get_running_loop().time()
        if wait_s > 0:
            log.info("%s: waiting %.1f s for requests of %s", who, wait_s, self.previous_holder)
            await asyncio.sleep(wait_s)


class LeaderElector:
    """Competes for a lease. `run` does the work.

    Args:
        client: the API server.
        name: the lease.
        namespace: its namespace.
        identity: name of this process. It must be unique, also among restarts of a process.
        lease_duration_s: others take over this long after our last renewal, by their own clocks.
        renew_deadline_s: this process stops leading if it could not renew the lease for this long.
        retry_period_s: pause between attempts.
        annotations: annotations of the lease about its holder; an empty value removes an earlier holder's annotation.
        clock: seconds since the epoch, for times in the lease. Deadlines use the event loop's clock.
        rng: source of jitter.
        metrics: shows whether this process leads.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        lease_duration_s: float = LEASE_DURATION_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_period_s: float = RETRY_PERIOD_S,
        annotations: Mapping[str, str] | None = None,
        clock: Callable[[], float] = steady_time,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        if not retry_period_s < renew_deadline_s < lease_duration_s:
            raise ValueError("need retry_period_s < renew_deadline_s < lease_duration_s")
        self.name = name
        self.identity = identity
        self.acquired = asyncio.Event()
        """Set while we lead."""
        self.lost = asyncio.Event()
        """Set while we do not lead."""
        self.lost.set()
        self._client = client
        self._namespace = namespace
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._annotations = dict(annotations or {})
        self._clock = clock
        self._rng = rng or random.Random()
        self._gauge = (metrics or kube_metrics()).leading.labels(name)
        self._gauge.set(0)
        self._term: Term | None = None
        self._renewed_at = float("-inf")
        self._ended_at = float("-inf")
        self._observed: Lease | None = None
        self._observed_at = float("-inf")

    @property
    def leading(self) -> bool:
        """Returns whether this process may act now. It is false at the renew deadline, even before `lost` is set."""
        # Not the loop's time: uvloop reads it once per iteration, and the process may have been stopped since then.
        return self._term is not None and time.monotonic() < self._renewed_at + self._renew_deadline_s

    @property
    def term(self) -> Term | None:
        """The current term, or None."""
        return self._term if self.leading else None

    @property
    def holder(self) -> str:
        """Returns the last known holder of the lease."""
        return (self._observed.spec.holder_identity or "") if self._observed is not None else ""

    def fence(self, client: Client) -> Client:
        """Return a client that sends no write unless this process still leads at that moment.

        Otherwise a process that was stopped and continues could send an old decision before it notices that its term
        has ended.
        """
        return client.fenced(lambda: self.leading)

    async def while_leading(self, work: Callable[[Term], Coroutine[Any, Any, None]], name: str) -> None:
        """Run `work` in each term, and cancel it at the end of the term. Never returns.

        An error in `work` ends this call as well.
        """
        while True:
            await self.acquired.wait()
            leading = self.term
            if leading is None:  # the term is over, but `lost` is not set yet
                await self.lost.wait()
                continue
            term = asyncio.create_task(work(leading), name=name)
            lost = asyncio.create_task(self.lost.wait())
            try:
                await asyncio.wait([term, lost], return_when=asyncio.FIRST_COMPLETED)
                if term.done():
                    term.result()
            finally:
                for task in (term, lost):
                    task.cancel()
                await asyncio.gather(term, lost, return_exceptions=True)

    async def run(self) -> None:
        """Compete until cancelled, then release the lease. There can be several terms."""
        try:
            while True:
                await self._until_acquired()
                await self._while_renewed()
                self._end_term()
        finally:
            held = self._term is not None
            self._end_term()
            if held:
                await self._release()

    async def _until_acquired(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._renew_deadline_s):
                    if await self._try_acquire():
                        return
            except (ApiError, ConfigError, TimeoutError) as error:
                log.info("lease %s: %s", self.name, _why(error))
            await asyncio.sleep(self._retry_period_s * self._rng.uniform(1.0, 2.2))

    async def _while_renewed(self) -> None:
        deadline = self._renewed_at + self._renew_deadline_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(self._retry_period_s)
                    if not await self._renew():
                        log.warning("lost the lease %s to %s", self.name, self.holder or "no holder")
                        return
                    deadline = self._renewed_at + self._renew_deadline_s
            except TimeoutError:
                log.warning("lost the lease %s: not renewed for %g s", self.name, self._renew_deadline_s)
                return
            except (ApiError, ConfigError) as error:
                log.info("lease %s: %s", self.name, error)

    async def _try_acquire(self) -> bool:
        started = self._now()
        try:
            lease = await self._client.get(Lease, self.name, self._namespace)
        except NotFound:
            metadata = self._annotated(ObjectMeta(name=self.name, namespace=self._namespace))
            lease = Lease(metadata=metadata, spec=self._claim(None))
            try:
                self._observe(await self._client.create(lease))
            except AlreadyExists:
                return False
            self._begin_term(started, "", started)
            return True
        self._observe(lease)
        holder = lease.spec.holder_identity or ""
        duration_s = lease.spec.lease_duration_seconds or self._lease_duration_s
        observed_at = self._observed_at
        expires_at = observed_at + duration_s
        if holder and holder != self.identity and self._now() < expires_at:
            return False
        started = self._now()
        try:
            ours = msgspec.structs.replace(
                lease, metadata=self._annotated(lease.metadata), spec=self._claim(lease.spec)
            )
            self._observe(await self._client.replace(ours))
        except (Conflict, NotFound):
            return False
        stopped_at = (
            self._ended_at if holder == self.identity else min(expires_at, observed_at + self._renew_deadline_s)
        )
        self._begin_term(started, holder, stopped_at if holder else started)
        return True

    async def _renew(self) -> bool:
        """Renew the lease. Returns whether we still hold it. Raises ApiError if that is unknown."""
        assert self._observed is not None
        started = self._now()
        spec = msgspec.structs.replace(self._observed.spec, renew_time=self._now_utc())
        try:
            self._observe(await self._client.replace(msgspec.structs.replace(self._observed, spec=spec)))
        except (Conflict, NotFound):
            # Another write came first. It may have been our own with a lost answer: then the lease is still ours.
            try:
                self._observe(await self._client.get(Lease, self.name, self._namespace))
            except NotFound:
                self._observed = None
                return False
            return self.holder == self.identity
        self._renewed_at = started
        return True

    async def _release(self) -> None:
        """Release the lease, so that the next leader does not have to wait.

        A cancelled renewal may have changed its version.
        """
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                while not await self._released():
                    pass
        except (ApiError, ConfigError, TimeoutError) as error:
            log.info("lease %s: not released: %s", self.name, _why(error))

    async def _released(self) -> bool:
        lease = await self._client.get(Lease, self.name, self._namespace)
        if lease.spec.holder_identity != self.identity:
            return True
        # The next leader then waits for our requests, as after a crash, but not for the lease to expire.
        holder = self.identity if self._client.may_be_writing(self._lease_duration_s) else None
        spec = msgspec.structs.replace(
            lease.spec, holder_identity=holder, lease_duration_seconds=1, renew_time=self._now_utc()
        )
        try:
            await self._client.replace(msgspec.structs.replace(lease, spec=spec))
        except Conflict:
            return False
        return True

    def _annotated(self, metadata: ObjectMeta) -> ObjectMeta:
        annotations = {**metadata.annotations, **self._annotations}
        return msgspec.structs.replace(metadata, annotations={key: text for key, text in annotations.items() if text})

    def _claim(self, old: LeaseSpec | None) -> LeaseSpec:
        now = self._now_utc()
        ours = old is not None and old.holder_identity == self.identity
        transitions = (old.lease_transitions or 0) if old is not None else 0
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._lease_duration_s)),
            acquire_time=old.acquire_time if ours and old is not None else now,
            renew_time=now,
            lease_transitions=transitions if ours or old is None else transitions + 1,
        )

    def _observe(self, lease: Lease) -> None:
        if self._observed is None or self._observed.metadata.resource_version != lease.metadata.resource_version:
            self._observed, self._observed_at = lease, self._now()

    def _begin_term(self, started: float, previous_holder: str, previous_deadline: float) -> None:
        assert self._observed is not None
        # Measured before the request, so that the lease is never shorter than we assume.
        self._renewed_at = started
        self._term = Term(self._now(), previous_holder, previous_deadline, self._observed.spec.lease_transitions or 0)
        log.info("leading: %s holds the lease %s", self.identity, self.name)
        self._gauge.set(1)
        self.lost.clear()
        self.acquired.set()

    def _end_term(self) -> None:
        if self._term is not None:
            self._ended_at = self._now()
        self._term = None
        self._gauge.set(0)
        self.acquired.clear()
        self.lost.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _now_utc(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _why(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
