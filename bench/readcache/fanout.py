"""One run of one shape of watches, on the API server alone or on the cache."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass

from bench.gang_spike.process import cpu_s
from bench.readcache.arena import NAMESPACE, Arena, Endpoint, arena, cache, each
from bench.readcache.load import Load, Seen, watches
from bench.readcache.process import rss_bytes

PROTOBUF = "application/vnd.kubernetes.protobuf;stream=watch,application/json"
_QUIET_S = 2.0
_STALL_S = 30.0


@dataclass(frozen=True)
class Shape:
    """How many watches, what they select, and the writes.

    Attributes:
        name: for figures.
        watchers: number of watches.
        per_node: each watch selects the pods of one node; else all watches see everything.
        pods: number of pods.
        paced_per_s: writes a second while lag and CPU are measured.
        paced_s: for how long.
        burst: writes as fast as the API server takes them.
    """

    name: str
    watchers: int
    per_node: bool
    pods: int
    paced_per_s: float
    paced_s: float
    burst: int

    @property
    def receivers(self) -> int:
        """The number of watches that see one write."""
        return 1 if self.per_node else self.watchers

    @property
    def path(self) -> str:
        """The request; {n} is the number of the watch."""
        selector = "&fieldSelector=spec.nodeName%3Dnode-{n}" if self.per_node else ""
        return f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1&allowWatchBookmarks=true{selector}&resourceVersion="


async def run(shape: Shape, side: str) -> dict[str, float]:
    """Measure one side: direct, cache (TLS) or plain (the cache without TLS)."""
    async with arena(shape.pods) as where:
        if side == "direct":
            return await _measure(shape, where, where.apiserver)
        async with cache(where, tls=side == "cache") as running:
            found = await _measure(shape, where, running.endpoint)
            if log := running.log():
                print(log, file=sys.stderr)
            return found


async def _measure(shape: Shape, where: Arena, endpoint: Endpoint) -> dict[str, float]:
    api = where.apiserver
    path = shape.path + await where.version()
    async with watches(endpoint.url, endpoint.ca, where.token, path, PROTOBUF) as load:
        await load.connect(1)  # the first one loads the state and the code
        await asyncio.sleep(_QUIET_S)
        before, api_before = rss_bytes(endpoint.pid), rss_bytes(api.pid)
        connect_cpu, began = cpu_s(endpoint.pid), time.monotonic()
        await load.connect(shape.watchers)
        found = {"connect_s": time.monotonic() - began}
        await asyncio.sleep(_QUIET_S)
        found["connect_cpu_ms"] = (cpu_s(endpoint.pid) - connect_cpu) * 1000 / shape.watchers
        found["idle_kib_per_watcher"] = (rss_bytes(endpoint.pid) - before) / 1024 / shape.watchers
        found |= await _paced(shape, where, endpoint, load)
        found |= await _burst(shape, where, endpoint, load)
        await asyncio.sleep(_QUIET_S)
        found["kib_per_watcher"] = (rss_bytes(endpoint.pid) - before) / 1024 / shape.watchers
        found["api_rss_mb"] = rss_bytes(api.pid) / 1e6
        found["api_rss_growth_mb"] = (rss_bytes(api.pid) - api_before) / 1e6
        found["server_rss_mb"] = rss_bytes(endpoint.pid) / 1e6
        seen = await load.ask("report")
        found["dropped"] = shape.watchers - seen.open
        return found


async def _paced(shape: Shape, where: Arena, endpoint: Endpoint, load: Load) -> dict[str, float]:
    count = max(1, int(shape.paced_per_s * shape.paced_s))
    before = await load.ask("begin")
    cpu, api_cpu = cpu_s(endpoint.pid), cpu_s(where.apiserver.pid)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / shape.paced_per_s - time.monotonic()))
            group.create_task(where.write(number))
    seen = await _arrived(load, count * shape.receivers)
    return {
        "lag_p50_ms": seen.lag_p50_ms,
        "lag_p99_ms": seen.lag_p99_ms,
        "cpu_us_per_delivery": (cpu_s(endpoint.pid) - cpu) * 1e6 / seen.events,
        "api_cpu_ms_per_write": (cpu_s(where.apiserver.pid) - api_cpu) * 1000 / count,
        "load_cpu_us_per_delivery": (seen.cpu_s - before.cpu_s) * 1e6 / seen.events,
        "missed": count * shape.receivers - seen.events,
    }


async def _burst(shape: Shape, where: Arena, endpoint: Endpoint, load: Load) -> dict[str, float]:
    await load.ask("begin")
    cpu, api_cpu = cpu_s(endpoint.pid), cpu_s(where.apiserver.pid)
    began = time.time_ns()
    await each(shape.burst, where.write)
    written = time.time_ns()
    seen = await _arrived(load, shape.burst * shape.receivers)
    return {
        "burst_writes_per_s": shape.burst / ((written - began) / 1e9),
        "burst_events_per_s": seen.events / ((seen.last_ns - began) / 1e9),
        "burst_cpu_us_per_delivery": (cpu_s(endpoint.pid) - cpu) * 1e6 / seen.events,
        "burst_api_cpu_s": cpu_s(where.apiserver.pid) - api_cpu,
        "burst_missed": shape.burst * shape.receivers - seen.events,
    }


async def _arrived(load: Load, expected: int) -> Seen:
    """Wait until all events were seen, or none came for a while."""
    seen = await load.ask("report")
    events, since = -1, time.monotonic()
    while seen.events < expected and time.monotonic() - since < _STALL_S:
        if seen.events != events:
            events, since = seen.events, time.monotonic()
        await asyncio.sleep(0.1)
        seen = await load.ask("report")
    return seen
