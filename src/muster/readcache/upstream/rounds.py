"""Shares one call among all that asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Rounds(Generic[T]):
    """Calls `call` one at a time. A result is only for those that asked before its call began.

    Args:
        call: the call; it must end by itself.
        failures: exceptions that it may raise. Every caller of that round gets them.
    """

    def __init__(self, call: Callable[[], Awaitable[T]], failures: tuple[type[Exception], ...]) -> None:
        self._call = call
        self._failures = failures
        self._running: asyncio.Task[T | Exception] | None = None
        self._next: asyncio.Task[T | Exception] | None = None

    async def result(self) -> T:
        """Return the result of a call that begins now or later."""
        if self._next is None:
            self._next = asyncio.create_task(self._round())
        result = await asyncio.shield(self._next)
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        """Cancel the calls."""
        tasks = [task for task in (self._next, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _round(self) -> T | Exception:
        if self._running is not None:
            await asyncio.wait([self._running])
        self._running, self._next = self._next, None
        try:
            return await self._call()
        except self._failures as error:
            return error
