"""A restart of the cache with many clients: how often the API server sends a whole state."""

from __future__ import annotations

import asyncio
import time

from bench.readcache.arena import NAMESPACE, Arena, arena, cache
from bench.readcache.fanout import PROTOBUF
from bench.readcache.load import Load, watches

_RECONNECT_S = 5.0
_AGAIN_S = 300.0
_OPEN = r'apiserver_longrunning_requests\{.*resource="pods",.*verb="WATCH"'
_PATH = (
    f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1&allowWatchBookmarks=true"
    "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
)


async def run(watchers: int, pods: int) -> dict[str, float]:
    """Kill the cache under `watchers` clients, start it again, and count what the API server sends to it."""
    async with arena(pods) as where:
        own_watches = await where.metric(_OPEN)
        async with cache(where, tls=True) as running:
            endpoint = running.endpoint
            async with watches(
                endpoint.url, endpoint.ca, where.token, _PATH, PROTOBUF, reconnect_s=_RECONNECT_S
            ) as load:
                await load.connect(watchers)
                await load.ask("begin")
                before = await _sent(where)
                running.kill()
                began = time.monotonic()
                await running.start()
                await _all_again(load, watchers)
                back_s = time.monotonic() - began
                sent = [after - earlier for earlier, after in zip(before, await _sent(where), strict=True)]
                return {
                    "all_back_s": back_s,
                    "states": sent[0] / pods + sent[1] // pods,  # one object alone is the question for the version
                    "list_requests": sent[2],
                    "watches_upstream": await where.metric(_OPEN) - own_watches,
                }


async def _all_again(load: Load, watchers: int) -> None:
    """Wait until each client has watched again."""
    until = time.monotonic() + _AGAIN_S
    seen = await load.ask("report")
    while seen.open < watchers or seen.reconnected < watchers:
        if time.monotonic() > until:
            raise RuntimeError(f"only {seen.open} of {watchers} clients came back")
        await asyncio.sleep(0.2)
        seen = await load.ask("report")


async def _sent(where: Arena) -> tuple[float, float, float]:
    """Initial events of watches, objects in lists, and lists of pods, as the API server counts them."""
    events = await where.metric(r'apiserver_init_events_total\{.*resource="pods"')
    objects = await where.metric(r'apiserver_(cache|storage)_list_returned_objects_total\{.*[="/]pods"')
    lists = await where.metric(r'apiserver_request_total\{.*resource="pods",.*verb="LIST"')
    return events, objects, lists
