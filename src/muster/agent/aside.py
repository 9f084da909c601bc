"""Runs calls that may block forever, because a faulty disk, driver or library may not return from a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StillBusyError(Exception):
    """An earlier call has not returned yet, so no other call is started."""


class Aside:
    """Runs one blocking call at a time in a separate thread, which is abandoned if it does not return."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise what the call does. If cancelled, the call is abandoned.

        Raises:
            StillBusyError: an earlier call was abandoned and has not returned yet.
        """
        if self._busy:
            raise StillBusyError
        self._busy = True
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result: T | None = None
            trouble: Exception | None = None
            try:
                result = call(*args, **kwargs)
            except Exception as error:  # any error is passed to the caller
                trouble = error if not isinstance(error, StopIteration) else RuntimeError(repr(error))
            except BaseException as error:  # such as SystemExit, which would end the loop and the agent
                trouble = RuntimeError(repr(error))
            self._busy = False  # before the result is set, because the caller may then call again at once
            try:
                loop.call_soon_threadsafe(settle, result, trouble)
            except RuntimeError:  # the loop is closed: the caller has gone
                return

        # A daemon thread: a thread that is stuck in the kernel must not keep the agent from ending.
        threading.Thread(target=work, name=self._name, daemon=True).start()
        return await done
