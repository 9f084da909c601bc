"""Writes Scheduled events for pods and gangs in the background, after binding.

Writing five thousand events at once would cost the API server more than the binds themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from muster.kube.events import NORMAL, EventRecorder
from muster.kube.objects.core import ObjectReference

EVENTS_PER_S = 100.0
QUEUED_MAX = 20_000
"""Maximum number of queued events, more than the pods of the largest clusters. Beyond it, the oldest are dropped."""
BINDING_WAIT_S = 5.0
"""Longest delay of an event. If binds never pause, events are written after this time anyway."""


class Announcer:
    """Writes queued events one after the other, rate limited, while no bind is in flight.

    Args:
        events: writes them.
        quiet: waits until no bind has been in flight for a moment.
        per_s: maximum events per second.
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
        """Queue an event about a bound pod or gang."""
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
