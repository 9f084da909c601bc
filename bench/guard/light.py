"""python -m bench.guard.light REAL_URL EXPRESSION: answers one query at once, and passes all else to a real server.

The guard's own requests (probes) thus see a real server, and the noise of a real server's queries is left out of what
the guard adds. Prints its address, and serves until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
import uvloop
from aiohttp import web

_POINTS = 60


def answer() -> bytes:
    """A matrix of one series, about 1.5 KB."""
    values = [[1795660302 + 60 * number, "4000"] for number in range(_POINTS)]
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
    ).encode()


async def serve(real: str, expression: str) -> None:
    """Serve until stdin ends."""
    fixed = answer()
    async with aiohttp.ClientSession() as client:

        async def handle(request: web.Request) -> web.Response:
            given = [*request.query.items(), *(await request.post()).items()]
            fields = [(name, value) for name, value in given if isinstance(value, str)]
            if request.path == "/api/v1/query_range" and ("query", expression) in fields:
                return web.Response(body=fixed, content_type="application/json")
            async with client.get(real + request.path, params=fields) as passed:
                return web.Response(body=await passed.read(), status=passed.status, content_type=passed.content_type)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        print(f"http://{host}:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
