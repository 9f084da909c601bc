"""Prices of the guard beside real costs: samples as Prometheus counts them, series, bytes of answers, memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
import uvloop

from bench.guard.corpus import Corpus
from bench.guard.memory import in_use_of
from bench.guard.users import Request
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.pricer import Pricer, ProbeFailed
from muster.telemetry.guard.query.parsing import parse
from tests.support.prometheus import Prometheus

FACTOR = 2.0
"""An estimate is good within this factor."""
SMALL = {"samples": 50, "series": 3, "items": 3, "answer_bytes": 500, "memory_bytes": 32 << 20}
"""Below this, costs count as equal: the price of a small request decides nothing."""


class DirectProbes:
    """Probes of a server, with a count."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._url = url
        self.sent = 0
        self.seconds = 0.0

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes:
        """Return the body of an answer. Raises ProbeFailed."""
        self.sent += 1
        began_s = time.perf_counter()
        try:
            async with self._client.get(
                self._url + path, params=list(parameters), timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as answer:
                body = b""
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > max_bytes:
                        raise ProbeFailed(f"{path}: more than {max_bytes} bytes")
                if answer.status != 200:
                    raise ProbeFailed(f"{path}: HTTP {answer.status}")
                return body
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ProbeFailed(f"{path}: {error!r}") from error
        finally:
            self.seconds += time.perf_counter() - began_s


@dataclass
class Compared:
    """Estimates and real values, by what was estimated; `unknown` are requests without a price."""

    pairs: dict[str, list[tuple[float, float, str]]] = field(default_factory=dict)
    requests: int = 0
    unknown: int = 0
    probes: int = 0
    probes_s: float = 0.0

    def add(self, what: str, estimate: float, real: float, of: str) -> None:
        """Note an estimate."""
        self.pairs.setdefault(what, []).append((estimate, real, of))

    def factors(self, what: str) -> list[float]:
        """How far off the estimates are: estimate / real, or its inverse if that is more."""
        return self._factors(what, SMALL[what])

    def bare_factors(self, what: str) -> list[float]:
        """As `factors`, also for requests that cost nearly nothing."""
        return self._factors(what, 1.0)

    def _factors(self, what: str, least: float) -> list[float]:
        return [
            math.exp(abs(math.log(max(estimate, least) / max(real, least))))
            for estimate, real, _ in self.pairs.get(what, [])
        ]

    def worst(self, count: int = 3) -> list[tuple[str, float, float, str]]:
        """The worst estimates of each kind that are off by more than FACTOR: what, estimate, real, request."""
        found = []
        for what, pairs in self.pairs.items():
            rated = sorted(zip(self.factors(what), pairs, strict=True), reverse=True)
            found += [(what, *pair) for factor, pair in rated[:count] if factor > FACTOR]
        return found


def measure(server: Prometheus, corpus: Corpus, end_s: float) -> Compared:
    """Price each request of the corpus, send it to the server, and compare."""
    compared = Compared()
    uvloop.run(_measure(server, corpus, end_s, compared))
    return compared


async def _measure(server: Prometheus, corpus: Corpus, end_s: float, compared: Compared) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        probes = DirectProbes(client, server.url)
        pricer = Pricer(probes, time.monotonic)
        for request in (*corpus.queries, *corpus.metadata):
            price = await _price(pricer, request, end_s)
            compared.requests += 1
            if price is None:
                compared.unknown += 1
                continue
            body = await _body(client, server.url, request, end_s)
            _compare(compared, request, price, body)
        for request in corpus.dear:
            price = await _price(pricer, request, end_s)
            with in_use_of(server) as used:
                await _body(client, server.url, request, end_s)
            if price is not None:
                compared.add("memory_bytes", price.memory_bytes, used.grown_bytes, str(request.params))
        compared.probes, compared.probes_s = probes.sent, probes.seconds


async def _price(pricer: Pricer, request: Request, end_s: float) -> Price | None:
    operation = parse("GET", request.path, request.timed(end_s), "", b"", time.time())
    return await pricer.price(operation, "")


async def _body(client: aiohttp.ClientSession, url: str, request: Request, end_s: float) -> bytes:
    given = request.timed(end_s)
    if request.path.startswith("/api/v1/query"):
        given.append(("stats", "all"))
    async with client.get(url + request.path, params=given) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{request}: HTTP {answer.status}: {body[:300]!r}")
        return body


def _compare(compared: Compared, request: Request, price: Price, body: bytes) -> None:
    of = f"{request.path} {request.params} {request.range_s} {request.step_s}"
    if request.path == "/federate":
        lines = sum(not line.startswith(b"#") for line in body.splitlines())
        compared.add("series", price.series, lines, of)
        compared.add("answer_bytes", price.answer_bytes, len(body), of)
        return
    data = json.loads(body)["data"]
    if isinstance(data, list):
        compared.add("items", price.items, len(data), of)
        compared.add("answer_bytes", price.answer_bytes, len(body), of)
        if request.path == "/api/v1/series":
            compared.add("series", price.series, len(data), of)
        return
    compared.add("samples", price.samples, data["stats"]["samples"]["totalQueryableSamples"], of)
    compared.add("answer_bytes", price.answer_bytes, len(body) - _stats_bytes(body), of)


class _Data(msgspec.Struct):
    stats: msgspec.Raw


class _Answer(msgspec.Struct):
    data: _Data


def _stats_bytes(body: bytes) -> int:
    """Return the bytes of the statistics, which clients do not ask for."""
    return len(bytes(msgspec.json.decode(body, type=_Answer).data.stats)) + len(',"stats":')
