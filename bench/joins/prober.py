"""Another client with its own work: reads and writes small objects at a steady pace, from a process of its own.

`python -m bench.joins.prober KUBECONFIG NAMESPACE` makes its objects, writes `ready`, and sends requests until its
stdin ends. Then it writes its measurements as JSON. A request's time begins when it is due, so that delays by the
server count.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, TooManyRequests
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta

EVERY_S = 0.025
OBJECTS = 32
_PATCH = {"Content-Type": "application/merge-patch+json"}


class Seen(msgspec.Struct):
    """The duration of each request, and the number of requests that were refused or failed otherwise."""

    taken_ms: list[float] = msgspec.field(default_factory=list)
    refused: int = 0
    failed: int = 0


async def _probe(client: Client, path: str, number: int, due: float, seen: Seen) -> None:
    body = b'{"data":{"n":"%d"}}' % number if number % 2 else None
    method, headers = ("PATCH", _PATCH) if body else ("GET", None)
    try:
        await client.request(method, path, body=body, headers=headers, retry_refused=False)
    except TooManyRequests:
        seen.refused += 1
    except ApiError:
        seen.failed += 1
    seen.taken_ms.append((time.perf_counter() - due) * 1e3)


async def _run(kubeconfig: Path, namespace: str) -> Seen:
    seen = Seen()
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with Client(load_config(kubeconfig), user_agent="bench-prober") as client, asyncio.TaskGroup() as probes:
        for number in range(OBJECTS):
            await client.create(ConfigMap(metadata=ObjectMeta(name=f"probe-{number}", namespace=namespace)))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        number, due = 0, time.perf_counter()
        while not ended.done():
            number, due = number + 1, due + EVERY_S
            path = f"/api/v1/namespaces/{namespace}/configmaps/probe-{number // 2 % OBJECTS}"
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            probes.create_task(_probe(client, path, number, due, seen))
    return seen


if __name__ == "__main__":
    found = uvloop.run(_run(Path(sys.argv[1]), sys.argv[2]))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
