from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from muster.kube.client import Client
from muster.kube.errors import Unavailable
from muster.trainingjobs.rendezvous.tokens import pod_reviewer


class Failing:
    """An API server that does not answer for a while, and then not at all."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.lost = asyncio.Event()

    async def create(self, review: Any, **options: Any) -> Any:
        self.asked.set()
        await self.lost.wait()
        raise Unavailable(0, "ConnectionLost", "connection lost")


async def test_failed_review_of_a_caller_that_has_gone_is_not_reported() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    server = Failing()
    reviewer = pod_reviewer(cast(Client, server))
    caller = asyncio.create_task(reviewer.identify("token"))
    await server.asked.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    server.lost.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []
    with pytest.raises(Unavailable):
        await reviewer.identify("token")
