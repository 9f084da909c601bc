"""Twenty users of Grafana at once, five of them careless."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import aiohttp
import uvloop

from bench.guard.asking import DEADLINE_S, Answer, send, session
from bench.guard.memory import Peak, peak_of
from bench.guard.users import User, crowd
from tests.support.prometheus import Prometheus

_SHIFT_S = 0.7
"""Users begin one after the other."""


@dataclass
class Seen:
    """Answers to the requests that began in time, by ordinary and by careless users.

    `again` are those of ordinary users to what they had asked before: the guard has prices of these.
    """

    ordinary: list[Answer] = field(default_factory=list)
    again: list[Answer] = field(default_factory=list)
    careless: list[Answer] = field(default_factory=list)


async def _live(user: User, client: aiohttp.ClientSession, url: str, end_s: float, stop_s: float, seen: Seen) -> None:
    loads, began_s = 0, time.monotonic()
    while time.monotonic() < stop_s:
        now_s = end_s + (time.monotonic() - began_s)
        answers = [await send(client, url, each, now_s, user.headers) for each in user.variables]
        answers += await asyncio.gather(*(send(client, url, each, now_s, user.headers) for each in user.panels))
        (seen.careless if user.careless else seen.ordinary).extend(answers)
        if loads and not user.careless:
            seen.again += answers
        loads += 1
        await asyncio.sleep(max(0.0, min(user.every_s, stop_s - time.monotonic())))


async def _all(url: str, end_s: float, lasting_s: float) -> Seen:
    seen, stop_s = Seen(), time.monotonic() + lasting_s

    async def later(number: int, user: User) -> None:
        await asyncio.sleep(number % 10 * _SHIFT_S)
        await _live(user, client, url, end_s, stop_s, seen)

    async with session() as client:
        await asyncio.gather(*(later(number, user) for number, user in enumerate(crowd())))
    return seen


def measure(server: Prometheus, url: str, end_s: float, lasting_s: float) -> tuple[Peak, Seen, float]:
    """Let them ask `url`; returns the server's memory, the answers, and its CPU seconds."""
    with peak_of(server) as peak:
        cpu_s = server.cpu_s()
        seen = uvloop.run(_all(url, end_s, lasting_s))
        used_s = 0.0 if peak.ended else server.cpu_s() - cpu_s
    return peak, seen, used_s


def figures(seen: Seen) -> dict[str, float]:
    """Requests and latencies of users. A lost request counts as one that took DEADLINE_S."""
    waits, again = _waits_s(seen.ordinary), _waits_s(seen.again)
    return {
        "ordinary_served": sum(each.served for each in seen.ordinary),
        "ordinary_lost": sum(not each.served for each in seen.ordinary),
        "ordinary_p50_s": median(waits),
        "ordinary_p99_s": quantile(waits, 0.99),
        **({"ordinary_again_p99_s": quantile(again, 0.99)} if again else {}),
        "careless_served": sum(each.served for each in seen.careless),
        "careless_refused": sum(each.refused for each in seen.careless),
        "careless_lost": sum(not each.served and not each.refused for each in seen.careless),
    }


def _waits_s(answers: Sequence[Answer]) -> list[float]:
    return sorted(each.seconds if each.served else max(DEADLINE_S, each.seconds) for each in answers)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
