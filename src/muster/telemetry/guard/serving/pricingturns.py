"""Turns of callers at pricing: probes are few, so a caller with many new queries must not take all of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from muster.telemetry.guard.serving.failure import Failure

AT_ONCE: Final = 8
"""Requests of one caller that are priced at once."""
WAITING_MAX: Final = 100
"""Further requests of it that wait."""
WAIT_S: Final = 10.0


@dataclass(slots=True)
class _Turns:
    """The requests of one caller that are priced, or wait for that."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    requests: int = 0


class PricingTurns:
    """Bounds how many requests of each caller are priced at once. It forgets callers without requests."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}

    def __len__(self) -> int:
        """Return how many callers have requests that are priced or wait."""
        return len(self._turns)

    def turn(self, caller: str) -> Turn:
        """Return a context manager that waits for a place of a caller, and holds it.

        Entering it raises Failure: too many requests of this caller wait, or it waited for too long.
        """
        return Turn(self._turns, caller)


class Turn:
    """The place of one request."""

    __slots__ = ("_caller", "_turns")

    def __init__(self, turns: dict[str, _Turns], caller: str) -> None:
        self._turns = turns
        self._caller = caller

    async def __aenter__(self) -> None:
        own = self._turns.get(self._caller)
        if own is None:
            own = self._turns[self._caller] = _Turns()
        if own.requests >= AT_ONCE + WAITING_MAX:
            raise _refusal()
        own.requests += 1
        try:
            if own.places.locked():
                await _wait(own.places)
            else:
                await own.places.acquire()
        except BaseException:
            self._leave(own)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = self._turns[self._caller]
        own.places.release()
        self._leave(own)

    def _leave(self, own: _Turns) -> None:
        own.requests -= 1
        if not own.requests:
            del self._turns[self._caller]


async def _wait(places: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            await places.acquire()
    except TimeoutError:
        raise _refusal() from None


def _refusal() -> Failure:
    message = "too many requests of this caller wait for a price; try again later, or send fewer at once"
    return Failure("over_budget", 429, message, retry_after_s=1.0)
