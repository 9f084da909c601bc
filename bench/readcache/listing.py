"""Lists of many pods, from the API server and from the cache."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
import zlib
from urllib.parse import urlsplit

from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.readcache.arena import NAMESPACE, Arena, Endpoint, arena, cache
from bench.readcache.process import reset_peak, rss_bytes

_AT_ONCE = 4
_SETTLE_S = 3.0
_LOAD_S = 120.0


class Busy(Exception):
    """The server asks to try again."""


def fetch(endpoint: Endpoint, token: str, encoding: str) -> tuple[float, int, int]:
    """List all pods once. Returns seconds, bytes on the wire and bytes of the body."""
    url = urlsplit(endpoint.url)
    assert url.hostname is not None
    connection: http.client.HTTPConnection
    if endpoint.ca is None:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
    else:
        context = ssl.create_default_context(cafile=endpoint.ca)
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=300, context=context)
    try:
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": encoding, "Accept": "application/json"}
        connection.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?resourceVersion=0", headers=headers)
        answer = connection.getresponse()
        if answer.status == 429:
            raise Busy
        if answer.status != 200:
            raise RuntimeError(f"a list was answered with {answer.status}: {answer.read(300)!r}")
        unpack = zlib.decompressobj(31) if answer.headers.get("Content-Encoding") == "gzip" else None
        sent = size = 0
        while data := answer.read(1 << 20):
            sent += len(data)
            size += len(unpack.decompress(data)) if unpack is not None else len(data)
        return time.monotonic() - began, sent, size
    finally:
        connection.close()


async def run(pods: int, repetitions: int) -> dict[str, dict[str, list[float]]]:
    """List `pods` pods from both, in turn."""
    found: dict[str, dict[str, list[float]]] = {"direct": {}, "cache": {}}
    async with arena(pods) as where, cache(where, tls=True) as running:
        token = where.token.read_text()
        sides = {"direct": where.apiserver, "cache": running.endpoint}
        for endpoint in sides.values():
            await _first(endpoint, token)
        for _ in range(repetitions):
            for side, endpoint in sides.items():
                for name, value in (await _measure(where, endpoint, token)).items():
                    found[side].setdefault(name, []).append(value)
        found["cache"]["rss_mb"] = [rss_bytes(running.endpoint.pid) / 1e6]
        found["direct"]["rss_mb"] = [rss_bytes(where.apiserver.pid) / 1e6]
    return found


async def _first(endpoint: Endpoint, token: str) -> None:
    """List once. While the cache loads its state, it asks to try again."""
    until = time.monotonic() + _LOAD_S
    while True:
        try:
            await asyncio.to_thread(fetch, endpoint, token, "identity")
            return
        except Busy:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(1)


async def _measure(where: Arena, endpoint: Endpoint, token: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, encoding in (("plain", "identity"), ("gzip", "gzip")):
        cpu = cpu_s(endpoint.pid)
        taken, sent, size = await asyncio.to_thread(fetch, endpoint, token, encoding)
        found |= {
            f"{name}_s": taken,
            f"{name}_cpu_s": cpu_s(endpoint.pid) - cpu,
            f"{name}_mb": sent / 1e6,
            "body_mb": size / 1e6,
        }
    await asyncio.sleep(_SETTLE_S)
    before = rss_bytes(endpoint.pid)
    reset_peak(endpoint.pid)
    began = time.monotonic()
    await asyncio.gather(*(asyncio.to_thread(fetch, endpoint, token, "identity") for _ in range(_AT_ONCE)))
    found[f"{_AT_ONCE}_at_once_s"] = time.monotonic() - began
    found[f"{_AT_ONCE}_at_once_growth_mb"] = peak_rss_mb(endpoint.pid) - before / 1e6
    return found
