"""Events about what was bound, once there is time: each pod's Scheduled, as kube-scheduler gives, and its gang's.

They come after the binds: five thousand of them at once would cost the API server more than the binds themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from muster.kube.core import ObjectReference
from muster.kube.events import NORMAL, EventRecorder

EVENTS_PER_S = 100.0
QUEUED_MAX = 20_000
"""More than the pods of the largest clusters: beyond it the oldest are not told, events are best effort."""
BINDING_WAIT_S = 5.0
"""How long binds under way keep an event back: where there are always some, events come all the same."""


class Announcer:
    """Writes the events one after the other, slowly, while no bind is under way.

    Args:
        events: writes them.
        quiet: waits until no bind is under way, nor was just now.
        per_s: events a second at most.
    """

    def __init__(
        self, events: EventRecorder, quiet: Callable[[], Awaitable[None]], per_s: float = EVENTS_PER_S
    ) -> None:
        self._events = events
        self._quiet = quiet
        self._pause_s = 1 / per_s
        self._queue: deque[tuple[ObjectReference, str, str]] = deque(maxlen=QUEUED_MAX)
        self._work = asyncio.Event()

    def bound(self, about: ObjectReference, reason: str, message: str) -> None:
        """Tell of a pod, or of a gang, when there is time."""
        self._queue.append((about, reason, message))
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            while self._queue:
                with suppress(TimeoutError):
                    async with asyncio.timeout(BINDING_WAIT_S):
                        await self._quiet()
                about, reason, message = self._queue.popleft()
                await self._events.once(about, NORMAL, reason, message, action="Binding")
                await asyncio.sleep(self._pause_s)
            self._work.clear()
            await self._work.wait()
