"""Waiting for what comes about by itself: poll, with a deadline that says what is missing."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

TIMEOUT_S = 60.0
"""A deadline, not a timing: on a machine that is busy with other things what is right still comes in time."""
LONG_TIMEOUT_S = 180.0
"""The same, for what many processes do together."""

_LOOK_S = 0.005
_ASK_S = 0.05  # a check that asks a server or the kernel: it shall not keep them busy
_REST = 4.0  # times what a check took: one that runs kubectl, or our program, shall not keep a core busy either
_REST_S = 1.0
_PATIENCE = 0.1  # of what was waited already: four that ask 20 times a second, and their servers, take half a core
_PATIENCE_S = 0.25  # so that a state that lasts half a second is still seen


async def until(
    what: str,
    check: Callable[[], Awaitable[Any] | Any],
    timeout_s: float = TIMEOUT_S,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> Any:
    """Poll until `check`, which may be a coroutine function, returns something true, and return that.

    Raises:
        AssertionError: at the deadline, with `what` and the last answer. A check that raises what is in `ignoring`
            has not come true yet; its error is the answer then.
    """
    began_at = time.monotonic()
    deadline = began_at + timeout_s
    while True:
        asked_at, least_s = time.monotonic(), _LOOK_S
        try:
            last = check()
            if inspect.isawaitable(last):
                least_s = _patient_s(began_at)
                last = await last
            if last:
                return last
        except ignoring as error:
            last = error
        if time.monotonic() > deadline:
            raise _too_late(what, timeout_s, last)
        await asyncio.sleep(_pause_s(asked_at, least_s))


def eventually(what: str, check: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """As `until`, for tests without an event loop."""
    began_at = time.monotonic()
    deadline = began_at + timeout_s
    while True:
        asked_at = time.monotonic()
        if last := check():
            return last
        if time.monotonic() > deadline:
            raise _too_late(what, timeout_s, last)
        time.sleep(_pause_s(asked_at, _patient_s(began_at)))


def _patient_s(began_at: float) -> float:
    return min(_PATIENCE_S, max(_ASK_S, _PATIENCE * (time.monotonic() - began_at)))


def _pause_s(asked_at: float, least_s: float) -> float:
    return min(_REST_S, max(least_s, _REST * (time.monotonic() - asked_at)))


def _too_late(what: str, timeout_s: float, last: object) -> AssertionError:
    return AssertionError(f"not within {timeout_s:g} s: {what}; the last answer: {last!r}")
