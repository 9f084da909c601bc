"""Readers that wait for a version."""

from __future__ import annotations

import asyncio


class Waiters:
    """Readers that wait for a version, each with a deadline."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._lowest = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, version: int, timeout_s: float) -> bool:
        """Wait until `wake` is called with `version` or a later one. Returns False after `timeout_s`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lowest = min(self._lowest, version) if self._waiting else version
        self._waiting[future] = version
        try:
            async with asyncio.timeout(timeout_s):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)

    def wake(self, version: int) -> None:
        """Wake the readers that wait for `version` or an earlier one."""
        if not self._waiting or version < self._lowest:
            return
        for future in [one for one, wanted in self._waiting.items() if wanted <= version]:
            del self._waiting[future]
            if not future.done():
                future.set_result(None)
        self._lowest = min(self._waiting.values(), default=0)
