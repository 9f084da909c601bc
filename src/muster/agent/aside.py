"""Calls that may block for ever: a sick disk, driver or library holds its caller in the kernel, out of reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StillBusyError(Exception):
    """An earlier call has not returned yet, so no other is begun."""


class Aside:
    """Runs one blocking call at a time in a thread of its own, which is left behind where it does not return."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise what the call does. Cancelling leaves it behind.

        Raises:
            StillBusyError: an earlier one is left behind and has not come back.
        """
        if self._thread is not None and self._thread.is_alive():
            raise StillBusyError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, trouble = None, None
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # whatever it was, the caller is to hear of it
                trouble = error
            try:
                loop.call_soon_threadsafe(settle, result, trouble)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        # A daemon: a thread that the kernel does not let go must not keep the agent from ending.
        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()
        return await done
