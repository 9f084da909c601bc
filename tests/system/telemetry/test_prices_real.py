"""Issue 17, A1 and A4: prices against a real Prometheus, and what its memory sees of requests that are refused."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.pricing.prober import ProbeFailed
from muster.telemetry.guard.query.parsing import parse
from tests.support import manyseries
from tests.support.prometheus import Prometheus, running, write_config
from tests.support.waiting import eventually

SERIES = 60_000
ROUNDS = 5
INTERVAL_S = 15.0
BUCKET = f"{manyseries.HISTOGRAM}_bucket"
LIMITS = Limits(max_series=50_000, max_label_values=500)
Pairs = Sequence[tuple[str, str]]


@dataclass
class Real:
    """The server, and the Unix time of its newest samples."""

    server: Prometheus
    now_s: float

    async def get(self, path: str, parameters: Pairs, tenant: str, timeout_s: float, max_bytes: int) -> bytes:
        """Answer a probe of the pricer."""
        return await asyncio.to_thread(self.fetch, path, parameters, timeout_s, max_bytes)

    def fetch(self, path: str, parameters: Pairs, timeout_s: float = 60.0, max_bytes: int = 1 << 30) -> bytes:
        """Ask the server."""
        url = f"{self.server.url}{path}?{urllib.parse.urlencode(list(parameters))}"
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as answer:
                body: bytes = answer.read(max_bytes + 1)
        except OSError as error:
            raise ProbeFailed(str(error)) from error
        if len(body) > max_bytes:
            raise ProbeFailed("too large")
        return body

    def allocated_bytes(self) -> float:
        """Bytes that the server has allocated since its start."""
        found = re.search(rb"^go_memstats_alloc_bytes_total (\S+)", self.fetch("/metrics", ()), re.MULTILINE)
        assert found is not None
        return float(found.group(1))

    def verdict(self, path: str, pairs: Pairs, limits: Limits = LIMITS) -> tuple[Price | None, Allow | Refuse]:
        """Price a request with an empty cache, and decide about it."""

        async def decided() -> tuple[Price | None, Allow | Refuse]:
            pricer = Pricer(self, time.monotonic)
            operation = parse("GET", path, pairs, "", b"", self.now_s)
            price = await pricer.price(operation, "")
            return price, decide(operation, price, limits, await pricer.capabilities(""))

        return asyncio.run(decided())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("prices")
    now_s = time.time()
    history = [now_s - INTERVAL_S * (ROUNDS - number) for number in range(ROUNDS)]
    with manyseries.serving(SERIES, 4, history) as targets:
        write_config(folder, {"pods": list(targets)}, interval_s=0.5)
        with running(folder) as server:
            eventually("all rounds are read", lambda: all(each.exhausted for each in targets.values()))
            yield Real(server, history[-1])


def ranged(query: str, span_s: float, step_s: float, now_s: float) -> Pairs:
    return [("query", query), ("start", f"{now_s - span_s:.3f}"), ("end", f"{now_s:.3f}"), ("step", f"{step_s:g}")]


OUTAGES = {
    "series_of_all_buckets": ("/api/v1/series", [("match[]", '{le!=""}')]),
    "series_of_everything": ("/api/v1/series", [("match[]", '{__name__=~".+"}')]),
    "series_of_everything_by_negation": ("/api/v1/series", [("match[]", '{namespace!~"x|y",pod!=""}')]),
    "federation_of_everything": ("/federate", [("match[]", '{__name__=~".+"}')]),
    "instant_query_of_everything": ("/api/v1/query", [("query", '{__name__=~".+"}')]),
    "values_of_a_label_of_every_pod": ("/api/v1/label/pod/values", []),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_prometheus_5547_refused_request_costs_the_server_nearly_nothing(real: Real, name: str) -> None:
    path, pairs = OUTAGES[name]
    before = real.allocated_bytes()
    price, verdict = real.verdict(path, pairs)
    guarded = real.allocated_bytes() - before
    if price is not None and not isinstance(verdict, Refuse):
        assert ("limit", "500") in verdict.parameters, "a newer server, which honours the limit"
        real.fetch(path, verdict.parameters)
    assert guarded < 8e6


def test_request_of_the_outage_costs_the_server_much_without_the_guard(real: Real) -> None:
    path, pairs = OUTAGES["series_of_all_buckets"]
    price, _ = real.verdict(path, pairs)
    before = real.allocated_bytes()
    answer = real.fetch(path, pairs)
    direct = real.allocated_bytes() - before
    assert direct > 40e6
    assert price is not None
    assert direct / 2 < price.memory_bytes < direct * 3
    assert len(answer) < price.answer_bytes < 3 * len(answer)


def test_count_by_name_over_a_year_and_tiny_steps_are_refused(real: Real) -> None:
    broad = 'count by (__name__) ({__name__=~".+"})'
    for query, span_s, step_s in (
        (broad, 365 * 86400, 86400), (broad, 3600, 60), ("up", 3600, 0.1),
        (f"sum(rate({BUCKET}[5m]))", 3600, 1), ("max_over_time(up[1h:10ms])", 3600, 60),
    ):  # fmt: skip
        _, verdict = real.verdict("/api/v1/query_range", ranged(query, span_s, step_s, real.now_s))
        assert isinstance(verdict, Refuse), query


def test_memory_of_the_server_stays_while_users_ask_for_everything(real: Real) -> None:
    real.verdict("/api/v1/query", [("query", "up")])
    real.server.reset_peak()
    before = real.server.rss_bytes()
    for path, pairs in OUTAGES.values():
        real.verdict(path, pairs)
    assert real.server.rss_bytes(peak=True) - before < 32e6


NORMAL: dict[str, tuple[str, float, float]] = {
    "gauge": ("container_threads", 0, 0),
    "gauge_of_a_namespace": ('container_threads{namespace="team-1"}', 60, 15),
    "rate": (f'sum by (handler) (rate({BUCKET}{{namespace="team-1"}}[1m]))', 60, 15),
    "quantile": (f'histogram_quantile(0.9, sum by (le) (rate({BUCKET}{{handler="push"}}[1m])))', 60, 15),
    "ratio": ("sum(container_memory_rss_bytes) / sum(container_memory_working_set_bytes)", 60, 15),
    "pattern": ('sum by (node) ({__name__=~"container_(fs|network)_.*",node=~"gpu-1.*"})', 60, 30),
    "list_of_pods": ('container_processes{pod=~"job-1-worker-1|job-2-worker-2|job-3-worker-3"}', 60, 15),
    "top": ("topk(5, rate(container_cpu_usage_seconds_total[1m]))", 0, 0),
    "subquery": ('max_over_time(container_threads{namespace="team-2"}[1m:15s])', 0, 0),
    "raw": ('container_threads{namespace="team-3"}[1m]', 0, 0),
    "offset": ("sum(container_threads offset 30s)", 0, 0),
}


@pytest.mark.parametrize("name", NORMAL)
def test_price_of_a_normal_query_is_within_twice_its_cost(real: Real, name: str) -> None:
    query, span_s, step_s = NORMAL[name]
    path = "/api/v1/query_range" if step_s else "/api/v1/query"
    pairs = ranged(query, span_s, step_s, real.now_s) if step_s else [("query", query), ("time", f"{real.now_s:.3f}")]
    price, verdict = real.verdict(path, pairs)
    assert price is not None
    assert isinstance(verdict, Allow)
    answer = real.fetch(path, [*verdict.parameters, ("stats", "all")])
    found = json.loads(answer)["data"]
    cost = found["stats"]["samples"]["totalQueryableSamples"]
    assert found["result"]
    assert cost / 2 <= price.samples <= cost * 2
    assert len(answer) / 4 <= price.answer_bytes + 500
