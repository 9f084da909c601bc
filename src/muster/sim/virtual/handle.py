"""A scheduled callback of the virtual event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

import msgspec


class Line(Protocol):
    """The event loop's queue of callbacks."""

    def run_soon(self, handle: Handle) -> None:
        """Append a handle that was set aside to the queue again."""


class Handle(msgspec.Struct, eq=False):
    """A scheduled callback. It is a struct to save time and memory, because a simulation creates millions of them."""

    loop: Line
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    when_: float
    cancelled_: bool = False

    def cancel(self) -> None:
        """Cancel the callback."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """Returns whether it was cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """Returns the virtual time at which the callback is due."""
        return self.when_
