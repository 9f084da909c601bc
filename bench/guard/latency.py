"""What the guard adds to a request whose price is cached: requests direct and through it, in turn, at a fixed rate.

Each request has times of its own, so the guard shares none. The peer is a relay that only passes bytes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from bench.guard.asking import Answer, send, session
from bench.guard.crowd import quantile
from bench.guard.guardprocess import cpu_s, guarding
from bench.guard.users import query_range
from tests.support.guardprocess import Guard
from tests.support.prometheus import Prometheus

PER_S = 200.0
LASTING_S = 8.0
"""Of each way."""
WARM_S = 2.0
_TURN_S = 0.5
"""The ways take turns, so that both see the same noise of the machine."""
NEW_PRICES = 40
EXPRESSION = 'sum by (pod) (container_threads{pod="job-5-worker-3"})'
_USERS = 20


@dataclass
class Added:
    """Milliseconds of requests: direct, through the relay, through the guard, and with a selector without a price yet.

    `guard_cpu_ms` is the guard's CPU time of one request with a cached price.
    """

    direct_ms: list[float] = field(default_factory=list)
    relayed_ms: list[float] = field(default_factory=list)
    guarded_ms: list[float] = field(default_factory=list)
    new_direct_ms: list[float] = field(default_factory=list)
    new_guarded_ms: list[float] = field(default_factory=list)
    guard_cpu_ms: float = 0.0

    def quantiles(self, share: float) -> tuple[float, float, float]:
        """The quantiles direct, through the relay and through the guard."""
        direct, relayed, guarded = (
            quantile(sorted(each), share) for each in (self.direct_ms, self.relayed_ms, self.guarded_ms)
        )
        return direct, relayed, guarded

    def new_quantiles(self, share: float) -> tuple[float, float]:
        """The same of requests without a cached price."""
        return quantile(sorted(self.new_direct_ms), share), quantile(sorted(self.new_guarded_ms), share)


@contextlib.contextmanager
def light(server: Prometheus) -> Iterator[str]:
    """Run the light server before a real one; yields its address."""
    with _helper("light", server.url, EXPRESSION) as url:
        yield url


@contextlib.contextmanager
def _helper(name: str, *arguments: str) -> Iterator[str]:
    """Run a module of this package that prints its address; yields it."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.guard.{name}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=30)


def measure(upstream: str, folder: Path, end_s: float) -> Added:
    """Measure with a guard of its own before `upstream`. Raises RuntimeError if a request has no answer."""
    added = Added()
    with guarding(folder, upstream) as guard, _helper("relay", upstream.removeprefix("http://")) as relay:
        uvloop.run(_measure(upstream, relay, guard, end_s, added))
    return added


async def _measure(direct: str, relay: str, guard: Guard, end_s: float, added: Added) -> None:
    urls = (direct, relay, guard.url)
    async with session() as client:
        await _paced(client, urls, end_s, WARM_S, Added())
        used_s = cpu_s(guard)
        await _paced(client, urls, end_s - 600, LASTING_S, added)
        added.guard_cpu_ms = 1000 * (cpu_s(guard) - used_s) / len(added.guarded_ms)
        for number in range(NEW_PRICES):  # one after the other: other selectors, each for the first time
            request = query_range(f'sum(container_threads{{pod="job-{number}-worker-1"}})')
            for url, values in ((direct, added.new_direct_ms), (guard.url, added.new_guarded_ms)):
                values.append(_checked(await send(client, url, request, end_s, _headers(number))))


async def _paced(
    client: aiohttp.ClientSession, urls: tuple[str, str, str], end_s: float, lasting_s: float, added: Added
) -> None:
    request, began_s = query_range(EXPRESSION, range_s=900.0, step_s=60.0), time.perf_counter()
    ways = list(zip(urls, (added.direct_ms, added.relayed_ms, added.guarded_ms), strict=True))

    async def one(number: int, url: str, values: list[float]) -> None:
        values.append(_checked(await send(client, url, request, end_s + number / PER_S, _headers(number))))

    async with asyncio.TaskGroup() as group:
        for number in range(int(lasting_s * PER_S) * len(ways)):
            await asyncio.sleep(max(0.0, began_s + number / PER_S - time.perf_counter()))
            group.create_task(one(number, *ways[int(number / PER_S / _TURN_S) % len(ways)]))


def _headers(number: int) -> dict[str, str]:
    return {"X-Grafana-User": f"user-{number % _USERS}", "X-Dashboard-Uid": "latency"}


def _checked(answer: Answer) -> float:
    if not answer.served:
        raise RuntimeError(f"a request was not served: {answer}")
    return answer.seconds * 1000
