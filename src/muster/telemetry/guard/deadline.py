"""A deadline that costs nothing where there is nothing to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine with a deadline.

    Most work that needs one finds all it needs in memory. It gets a timer only once it waits.

    Raises:
        TimeoutError: it took longer.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    async with asyncio.timeout(timeout_s):
        return await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that waits for `awaited`, as `yield from` does with one that has not begun."""
    while True:
        try:
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
        except StopIteration as end:
            result: T = end.value
            return result
