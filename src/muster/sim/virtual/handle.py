"""A callback that waits for its turn in the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

import msgspec


class Line(Protocol):
    """Where callbacks wait."""

    def run_soon(self, handle: Handle) -> None:
        """Put a handle that was put aside back in line."""


class Handle(msgspec.Struct, eq=False):
    """A callback that waits for its turn. A struct: simulations make millions of them."""

    loop: Line
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    when_: float
    cancelled_: bool = False

    def cancel(self) -> None:
        """Do not call back."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """Returns whether it was cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """The virtual time at which it is due."""
        return self.when_
