"""Watches the objects that own pods of other controllers. A kind is watched as soon as a pod refers to it.

If the cluster does not serve a kind, discovery is repeated at intervals. Its pods wait; other gangs continue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Conflict, Forbidden, NotFound
from muster.kube.informer import Informer
from muster.kube.objects.meta import KubeObject, Resource
from muster.scheduler.gangs.adapters import SOURCES, described
from muster.scheduler.gangs.adapters.membership import Workload
from muster.scheduler.gangs.adapters.source import Source
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long a new leader waits for these objects before its first plan."""
LOOK_AGAIN_S = 15.0
"""Interval of discovery for a kind that is not served: it may be installed later."""


class WorkloadFollower:
    """Keeps the state's workloads up to date.

    Args:
        client: the API server.
        state: receives the objects.
        clock: seconds since the epoch.
        changed: called after each change.
        seen: called with each object that is new or has changed.
        rng: source of jitter.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        seen: Callable[[Workload], None],
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._changed = changed
        self._seen = seen
        self._rng = rng
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, asyncio.Event] = {}

    def follow_wanted(self) -> None:
        """Start watching the kinds that pods or placements have referred to since the last call."""
        for name in self._state.foreign.directory.wanted.keys() - self._tasks.keys():
            self._known[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._follow(SOURCES[name]), name=f"workloads/{name}")

    async def settle(self) -> None:
        """Wait until these kinds are listed, or known not to be served; at most `SETTLE_S`."""
        self.follow_wanted()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for known in list(self._known.values()):
                    await known.wait()

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, source: Source[Any]) -> None:
        resource = source.kind.RESOURCE
        while not await served(self._client, resource):
            self._known[source.name].set()
            await asyncio.sleep(LOOK_AGAIN_S)
        # Not part of liveness: if objects of this kind cannot be read, the scheduler must continue.
        informer: Informer[Any] = Informer(self._client, source.kind, rng=self._rng)
        informer.add_handler(lambda old, new: self._object_changed(source, old, new))
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            while not informer.has_synced:
                with suppress(TimeoutError):
                    await informer.wait_synced(LOOK_AGAIN_S)
            self._state.workloads_listed(source.name)
            self._known[source.name].set()
            self._changed()

    def _object_changed(self, source: Source[Any], old: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None:
            workload = source.workload(new)
            self._state.set_workload(workload, self._clock())
            self._seen(workload)
        elif old is not None:
            self._state.remove_workload(source.workload(old).ref)
        self._changed()


async def expect_known(client: Client, state: ClusterState, gang: Gang, now: float) -> None:
    """Read the gang's object again before its first placement: its watch may lag behind the watch on pods.

    Raises:
        Conflict: it changed or is gone; the state is updated.
        ApiError: it cannot be read now.
    """
    known = state.foreign.directory.find(gang.workload) if gang.workload is not None else None
    if known is None:  # then an annotation of the pods has the number of members
        return
    source, ref = SOURCES[known.ref.source], known.ref
    try:  # a list needs the same permission as the watch
        listing = await client.list(source.kind, ref.namespace, field_selector=f"metadata.name={ref.name}")
    except Forbidden as error:
        log.warning("reading %s: %s", described(ref), error)
        return
    found = next(map(source.workload, listing.items), None)
    if found is None or found.ref.uid != ref.uid:
        state.remove_workload(ref)
    if found is not None and found != known:
        state.set_workload(found, now)
    if found != known:
        raise Conflict(409, "Conflict", f"{described(ref)} has changed")


async def served(client: Client, resource: Resource) -> bool | None:
    """Return whether the API server serves the kind; None if it does not answer."""
    try:
        answer = await client.request("GET", f"/apis/{resource.api_version}")
    except (ApiError, ConfigError) as error:
        if isinstance(error, NotFound):
            return False
        log.warning("looking for %s: %s", resource.plural, error)
        return None
    return f'"name":"{resource.plural}"'.encode() in answer.replace(b" ", b"")


async def list_wanted(client: Client, state: ClusterState, now: float) -> None:
    """List the objects that pods refer to, once. Unreadable ones stay unknown. Raises ApiError."""
    for name in list(state.foreign.directory.wanted):
        with suppress(NotFound, Forbidden):
            listing = await client.list_all(SOURCES[name].kind)
            for obj in listing.items:
                state.set_workload(SOURCES[name].workload(obj), now)
            state.workloads_listed(name)
