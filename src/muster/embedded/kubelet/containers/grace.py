"""A deadline for ending something, which may move closer while it runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Grace:
    """Seconds left to end in peace, on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._moved = asyncio.Event()

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when over."""
        return max(0.0, self._end - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """End `seconds` from now, where that is earlier."""
        if time.monotonic() + seconds < self._end:
            self._end = time.monotonic() + seconds
            self._moved.set()

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for `future` to be done, as long as there is time; False where it was not."""
        while not future.done() and self.left_s > 0:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait({future, moved}, timeout=self.left_s, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        return future.done()
