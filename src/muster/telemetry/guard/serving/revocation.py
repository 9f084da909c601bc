"""Ends requests whose caller is not known any more, also while they wait, or share an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from muster.telemetry.guard.callers.caller import Caller, NotIdentifiedReason
from muster.telemetry.guard.serving.failure import Failure

_NOT_REVIEWED: Final[frozenset[NotIdentifiedReason]] = frozenset({"no_review", "too_many_bad_tokens"})
"""Reasons that say nothing about the token."""
Identify = Callable[[web.BaseRequest], Awaitable[Caller]]


@dataclass(slots=True, eq=False)
class Underway:
    """A request that is served.

    Attributes:
        request: of the client.
        caller: who asked.
        task: serves it.
        started_s: on the monotonic clock.
        revoked: why it was ended; None if it was not.
        cancels: how often its task was cancelled for that.
    """

    request: web.BaseRequest
    caller: Caller
    task: asyncio.Task[object]
    started_s: float
    revoked: Failure | None = None
    cancels: int = 0

    def cancel(self) -> None:
        """Cancel the task because the request was revoked."""
        self.cancels += 1
        self.task.cancel()

    def cancelled_otherwise(self) -> bool:
        """Take back what `cancel` did. Returns whether the client's end or the server's stop cancelled the task too."""
        for _ in range(self.cancels):
            self.task.uncancel()
        self.cancels = 0
        return self.task.cancelling() > 0


class Revocation:
    """Identifies the callers of long requests again and again, and ends those of callers that were removed.

    If a token cannot be reviewed, its requests continue: their own deadlines bound them. This happens while the API
    server does not answer, and while too many invalid tokens arrive.

    Args:
        identify: returns the caller of a request, or raises Failure.
        recheck_s: how often; requests that are younger are left alone.
    """

    def __init__(self, identify: Identify, recheck_s: float) -> None:
        self._identify = identify
        self._recheck_s = recheck_s
        self._underway: set[Underway] = set()

    def begin(self, request: web.BaseRequest, caller: Caller) -> Underway:
        """Add the request that the current task serves. Give it to `end` afterwards."""
        task = asyncio.current_task()
        assert task is not None
        found = Underway(request, caller, task, time.monotonic())
        self._underway.add(found)
        return found

    def end(self, underway: Underway) -> None:
        """Forget a request."""
        self._underway.discard(underway)

    async def run(self) -> None:
        """Look at the requests until cancelled."""
        while True:
            await asyncio.sleep(self._recheck_s)
            old_s = time.monotonic() - self._recheck_s
            await asyncio.gather(*(self._look(each) for each in list(self._underway) if each.started_s <= old_s))

    async def _look(self, each: Underway) -> None:
        if each.revoked is not None:
            each.cancel()  # code that it awaited took the first for its own
            return
        try:
            caller = await self._identify(each.request)
        except ConnectionError:
            return
        except Failure as failure:
            if failure.reason in _NOT_REVIEWED:
                return
            revoked = failure
        else:
            if (caller.name, caller.credentials_key) == (each.caller.name, each.caller.credentials_key):
                return
            revoked = Failure("forbidden", 403, "this caller or its tenant has changed; send the request again")
        if each in self._underway and each.revoked is None:
            each.revoked = revoked
            each.cancel()
