"""Executes the writes of plans: a limit on writes in flight, a deadline for each, and one meaning for each error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from muster.kube.connection.transport import NotSent
from muster.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound, ServerTimeout, Unavailable

R = TypeVar("R")

log = logging.getLogger(__name__)


class WriteOutcome(StrEnum):
    """How a write ended."""

    DONE = "done"
    OVERTAKEN = "overtaken"
    """Another writer was first: the object changed, is gone or exists already. The cache shows it soon."""
    REFUSED = "refused"
    """The API server refused the write."""
    UNKNOWN = "unknown"
    """No answer came, so the write may still take effect."""


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """The end of a write.

    Attributes:
        outcome: how it ended.
        value: what the write returned, if it is done.
        error: why it is not done.
        why: the error as text; "" if the write is done.
    """

    outcome: WriteOutcome
    value: R | None = None
    error: Exception | None = None
    why: str = ""


class Executor:
    """Executes writes. Errors of writes are returned, not raised; the next plan decides whether to retry.

    Args:
        name: the controller, in logs.
        at_once: writes in flight.
        timeout_s: deadline of one write with all its requests. A new leader waits at least this long (`PlanLoop`'s
            `fence_s`).
    """

    def __init__(self, name: str, *, at_once: int, timeout_s: float) -> None:
        self._name = name
        self._slots = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s

    async def run(self, what: str, write: Callable[[], Awaitable[R]]) -> Result[R]:
        """Execute one write. `what` names it in logs."""
        try:
            async with self._slots, asyncio.timeout(self._timeout_s):
                return Result(WriteOutcome.DONE, await write())
        except (ApiError, ConfigError, TimeoutError) as error:
            outcome = outcome_of(error)
            level = logging.INFO if outcome is WriteOutcome.OVERTAKEN else logging.WARNING
            why = str(error) or f"no answer within {self._timeout_s:g} s"
            log.log(level, "%s: %s: %s: %s", self._name, what, outcome, why)
            return Result(outcome, error=error, why=why)


def outcome_of(error: Exception) -> WriteOutcome:
    """Return the meaning of a write's error."""
    if isinstance(error, Conflict | NotFound | AlreadyExists):
        return WriteOutcome.OVERTAKEN
    if isinstance(error, NotSent):
        return WriteOutcome.REFUSED
    if isinstance(error, TimeoutError | ServerTimeout | Unavailable):
        return WriteOutcome.UNKNOWN
    return WriteOutcome.UNKNOWN if isinstance(error, ApiError) and error.status >= 500 else WriteOutcome.REFUSED
