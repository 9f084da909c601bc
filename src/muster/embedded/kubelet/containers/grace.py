"""A grace period, which can be shortened while it runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Grace:
    """The rest of a grace period, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._moved = asyncio.Event()

    @property
    def left_s(self) -> float:
        """The remaining seconds; 0 at the end."""
        return max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """End `seconds` from now, if that is earlier."""
        if time.monotonic() + seconds < self._end:
            self._end = time.monotonic() + seconds
            self._moved.set()

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for `future` until the end of the grace period. Returns whether it is done."""
        while not future.done() and self.left_s > 0:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait({future, moved}, timeout=self.left_s, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        return future.done()
