"""The loop of a part that looks at its node once a period."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.kube.progress import Progress

_LATE_FACTOR: Final = 3
_LATE_S: Final = 60.0


async def each_period(progress: Progress, loop: str, period_s: float, look: Callable[[], object]) -> None:
    """Call the blocking function in a thread once a period, until cancelled.

    The loop is late after three periods and a minute, because one look may take long on a busy node.
    """
    progress.expect(loop, _LATE_FACTOR * period_s + _LATE_S)
    while True:
        await asyncio.to_thread(look)
        progress.mark(loop)
        await asyncio.sleep(period_s)
