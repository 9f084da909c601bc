"""The query that ended a production Prometheus (prometheus/prometheus#5547): all series with `le`, of all time."""

from __future__ import annotations

import asyncio

from bench.guard.asking import Answer, send, session
from bench.guard.memory import Peak, peak_of
from bench.guard.users import careless
from tests.support.prometheus import Prometheus


async def _ask(url: str, end_s: float) -> Answer:
    async with session() as client:
        return await send(client, url, careless()["outage"], end_s, {"X-Grafana-User": "user-outage"})


def measure(server: Prometheus, url: str, end_s: float) -> tuple[Peak, Answer]:
    """Send it to `url`, and return the server's memory and the answer."""
    with peak_of(server) as peak:
        answer = asyncio.run(_ask(url, end_s))
    return peak, answer
