"""Issue 17, A1: prices by what the server shows, and probes that are never the outage themselves."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import pytest

from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.pricing.prober import SAFE_SERIES
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse
from tests.support.fakemetrics import BUILD, FakeMetrics

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0
MODERN = {"version": "3.16.0", "revision": "r"}
MIMIR = {"version": "2.15.0", "revision": "r", "application": "Grafana Mimir"}
VICTORIA = {"version": "2.24.0"}


def fleet(pods: int, buckets: int = 10) -> list[dict[str, str]]:
    """Series of pods: a histogram, and one gauge each."""
    found = []
    for pod in range(pods):
        labels = {"pod": f"p-{pod}", "namespace": f"n-{pod % 5}", "job": "pods"}
        found += [{"__name__": "latency_bucket", "le": str(le), **labels} for le in range(buckets)]
        found.append({"__name__": "memory_bytes", **labels})
    return found


def operation(path: str, *pairs: tuple[str, str], **named: object) -> Operation:
    texts = [(name, str(value)) for name, value in named.items()]
    return parse("GET", f"/api/v1/{path}", [*texts, *pairs], "", b"", NOW_S)


def ranged(query: str, span_s: float, step_s: float) -> Operation:
    return operation("query_range", query=query, start=NOW_S - span_s, end=NOW_S, step=step_s)


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def price(server: FakeMetrics, *asked: Operation) -> list[Price | None]:
    pricer = Pricer(server, Clock())
    return [await pricer.price(each, "") for each in asked]


def priced(server: FakeMetrics, asked: Operation) -> Price:
    (found,) = asyncio.run(price(server, asked))
    assert found is not None
    return found


def verdict(server: FakeMetrics, asked: Operation, limits: Limits | None = None) -> Allow | Refuse:
    async def decided() -> Allow | Refuse:
        pricer = Pricer(server, Clock())
        return decide(asked, await pricer.price(asked, ""), limits or Limits(), await pricer.capabilities(""))

    return asyncio.run(decided())


def refusal(server: FakeMetrics, asked: Operation, limits: Limits | None = None) -> Refuse:
    found = verdict(server, asked, limits)
    assert isinstance(found, Refuse)
    return found


@pytest.mark.parametrize(
    "query",
    [
        "count_over_time(vector(1)[30d:1ms])",
        "count_over_time(vector(time())[30d:1ms])",
        "sum_over_time((1 + sum_over_time(vector(1)[1h:1s]))[2h:100ms])",
    ],
)
def test_subqueries_without_series_have_steps(query: str) -> None:
    server = FakeMetrics(fleet(1), build=MODERN)
    assert refusal(server, operation("query", query=query)).reason == "too_many_steps"
    assert isinstance(verdict(server, operation("query", query="count_over_time(vector(1)[1h:1m])")), Allow)
    assert isinstance(verdict(server, operation("format_query", query=query)), Allow)


def test_functions_around_subqueries_without_series_have_samples() -> None:
    server = FakeMetrics(fleet(1), build=MODERN)
    query = "+".join(["sum_over_time(vector(1)[3h:1s])"] * 2)
    assert refusal(server, ranged(query, 10_000, 1), Limits(max_steps=100_000)).reason == "too_many_samples"


def test_many_points_of_few_samples_cost_what_their_memory_does() -> None:
    server = FakeMetrics(fleet(100), build=MODERN)
    found = priced(server, ranged("memory_bytes", 10_000, 1))
    assert found.samples < 1.2e6
    assert found.cost > 10e6
    assert priced(server, ranged("sum(rate(memory_bytes[5m]))", 3600, 60)).cost < 1e6


def test_labels_that_an_expression_writes_have_a_price() -> None:
    server = FakeMetrics(fleet(300), build=MODERN)
    doubled = "memory_bytes"
    for _ in range(16):
        doubled = f'label_join({doubled}, "x", "", "x", "x", "pod")'
    assert refusal(server, operation("query", query=doubled)).reason == "answer_too_large"
    assert refusal(server, operation("query", query=f"count({doubled})")).reason == "too_much_memory"
    once = operation("query", query='label_join(memory_bytes, "x", "-", "pod", "namespace")')
    assert isinstance(verdict(server, once), Allow)


SMALL = fleet(100)


def large(**named: Any) -> FakeMetrics:
    """A server with 132,000 series."""
    return FakeMetrics(fleet(120), copies=100, **named)


@pytest.mark.parametrize(
    ("asked", "series", "samples"),
    [
        (operation("query", query="memory_bytes"), 100, 100),
        (operation("query", query="rate(latency_bucket[5m])"), 1000, 20_000),
        (
            operation("query_range", query="rate(latency_bucket[5m])", start=NOW_S - 600, end=NOW_S, step=60),
            1000,
            220_000,
        ),
        (operation("query_range", query="memory_bytes @ end()", start=NOW_S - 600, end=NOW_S, step=1), 100, 100),
        (operation("query", query="memory_bytes{namespace='n-1'}[10m]"), 20, 800),
        (operation("query", query="max_over_time(memory_bytes[10m:1m])"), 100, 1100),
        (operation("query", query="memory_bytes / on(pod) group_left() memory_bytes"), 200, 200),
        (operation("query", query="1 + time()"), 0, 0),
    ],
)
def test_price_counts_series_and_samples_as_the_engine_reads_them(asked: Operation, series: int, samples: int) -> None:
    found = priced(FakeMetrics(SMALL), asked)
    assert (found.series, found.samples, found.known) == (series, samples, "exact")


def test_subquery_multiplies_the_steps_of_a_range_query() -> None:
    tiny = operation("query_range", query="max_over_time(memory_bytes[1h:1s])", start=NOW_S - 600, end=NOW_S, step=1)
    assert priced(FakeMetrics(SMALL), tiny).samples > 600 * 3600 * 100
    assert refusal(FakeMetrics(SMALL), tiny).reason == "too_many_samples"


BROAD = [
    '{le!=""}', '{__name__=~".+"}', '{a=~".*",__name__=~".+"}', '{__name__!=""}', '{pod=~".+"}',
    '{x!~"y",pod!=""}', '{job=~"(.+)"}',
    '{pod=~"[a-z].*"}', '{pod=~"(?i)p.*"}', '{job="pods"}', '{__name__=~"latency_bucket|memory_bytes"}',
    '{"__name__"=~".+"}', '{__name__=~`.+`}', '{job=~"^pods$"}', '{pod=~"p-.*"}',
]  # fmt: skip


@pytest.mark.parametrize("selector", BROAD)
@pytest.mark.parametrize("honours_limit", [False, True])
def test_query_of_all_series_is_refused(selector: str, honours_limit: bool) -> None:
    server = large(honours_limit=honours_limit, build=MODERN if honours_limit else BUILD)
    asked = operation(
        "query_range", query=f"count by (__name__) ({selector})", start=NOW_S - HOUR_S, end=NOW_S, step=60
    )
    assert refusal(server, asked).reason == "too_many_series"


@pytest.mark.parametrize("selector", BROAD)
def test_prometheus_5547_series_of_everything_is_refused_where_limit_is_ignored(selector: str) -> None:
    server = large()
    found = refusal(server, operation("series", ("match[]", selector)))
    assert found.reason == "too_many_series"
    assert found.price.series >= 100_000
    assert all(float(given["timeout"]) <= 2 for path, given in server.asked if path == "/api/v1/query")


@pytest.mark.parametrize("selector", BROAD)
def test_prometheus_5547_series_of_everything_is_limited_where_limit_is_honoured(selector: str) -> None:
    found = verdict(large(honours_limit=True, build=MODERN), operation("series", ("match[]", selector)))
    assert isinstance(found, Allow)
    sent = dict(found.parameters)
    assert sent["limit"] == "10000"
    assert float(sent["end"]) - float(sent["start"]) == Limits().default_range_s


def test_series_of_several_broad_selectors_are_refused_since_the_server_sorts_them_first() -> None:
    server = large(honours_limit=True, build=MODERN)
    assert (
        refusal(server, operation("series", ("match[]", BROAD[0]), ("match[]", BROAD[1]))).reason == "too_many_series"
    )


def test_mimir_12826_series_get_a_limit_and_a_range_though_the_server_shows_no_status() -> None:
    server = large(honours_limit=True, has_status=False, build=MIMIR)
    found = verdict(server, operation("series", ("match[]", '{__name__=~".+"}'), start=NOW_S - 60, limit=50_000))
    assert isinstance(found, Allow)
    assert dict(found.parameters)["limit"] == "10000"
    assert server.queries == []


def test_query_of_all_series_has_no_price_where_the_server_shows_no_status() -> None:
    server = FakeMetrics(SMALL, has_status=False, build=MIMIR)
    assert refusal(server, operation("query", query='{le!=""}')).reason == "unknown_price"
    assert server.queries == []


def test_selector_with_a_name_is_counted_where_the_server_shows_no_status() -> None:
    assert (
        priced(FakeMetrics(SMALL, has_status=False, build=MIMIR), operation("query", query="memory_bytes")).series
        == 100
    )


def test_victoriametrics_is_known_by_its_answer_and_may_have_no_statistics() -> None:
    server = FakeMetrics(SMALL, build=VICTORIA, has_stats=False)
    found = priced(server, operation("query", query="rate(memory_bytes[5m])"))
    assert (found.samples, found.known) == (1000, "guess")
    capabilities = asyncio.run(Pricer(server, Clock()).capabilities(""))
    assert (capabilities.flavour, capabilities.limits_metadata) == ("victoriametrics", False)


def test_server_that_does_not_answer_leaves_the_price_unknown() -> None:
    assert refusal(FakeMetrics(down=True), operation("query", query="up")).reason == "unknown_price"


def test_probe_of_many_series_has_a_short_timeout() -> None:
    server = large()
    priced(server, operation("query", query='latency_bucket{pod=~"p-.*"}'))
    assert [given["timeout"] for path, given in server.asked if path == "/api/v1/query"] == ["0.3"]
    assert priced(server, operation("query", query="{le!=''}")).series > SAFE_SERIES


def test_broad_selector_is_never_probed_on_a_large_server() -> None:
    server = large()
    assert priced(server, operation("query", query='sum({le!=""})')).known == "bounded"
    assert server.queries == []


@pytest.mark.parametrize(("honours_limit", "probes"), [(False, 0), (True, 1)])
def test_old_server_is_not_made_to_sort_very_many_series(honours_limit: bool, probes: int) -> None:
    server = FakeMetrics(fleet(120), copies=200, honours_limit=honours_limit, build=MODERN if honours_limit else BUILD)
    found = priced(server, operation("query", query='{job="pods",namespace=~"n.*"}'))
    assert (found.series, found.known, len(server.queries)) == (264_000, "bounded", probes)


def test_old_time_is_not_bounded_by_the_head() -> None:
    server = large(since_s=NOW_S - 10 * 86400)
    found = refusal(server, operation("query", query='sum({job=~"pods"} offset 3d)'))
    assert found.price.series >= 100_000
    server.since_s = NOW_S - 7200
    assert refusal(server, operation("query", query='{job!=""}', time=NOW_S - 86400)).reason == "too_many_series"


def test_explosion_in_the_past_is_found_though_few_series_are_left() -> None:
    class Exploded(FakeMetrics):
        async def get(self, path, parameters, tenant, timeout_s, max_bytes):  # type: ignore[no-untyped-def]
            given = dict(parameters)
            if path == "/api/v1/query" and float(given["time"]) < NOW_S - HOUR_S:
                return await large().get(path, parameters, tenant, timeout_s, max_bytes)
            return await super().get(path, parameters, tenant, timeout_s, max_bytes)

    asked = operation("query_range", query="latency_bucket", start=NOW_S - 5 * 86400, end=NOW_S, step=600)
    assert refusal(Exploded(SMALL, since_s=NOW_S - HOUR_S), asked).price.series >= 100_000


@pytest.mark.parametrize(("hours", "series"), [(0.1, 20), (5, 220), (10, 420)])
def test_series_that_ended_in_the_window_are_counted_at_the_rate_of_their_metric(hours: float, series: int) -> None:
    ended = [{"__name__": "memory_bytes", "pod": f"old-{number}"} for number in range(400)]
    server = FakeMetrics(SMALL, ended=ended, since_s=NOW_S - 2 * HOUR_S, retention="15d")
    asked = ranged('memory_bytes{namespace="n-1"}', hours * HOUR_S, 600)
    assert abs(priced(server, asked).series - series) <= 4
    other = ranged('latency_bucket{namespace="n-1"}', hours * HOUR_S, 600)
    assert priced(server, other).series == 200


def test_year_costs_what_the_retention_holds() -> None:
    year = operation("query_range", query="memory_bytes", start=NOW_S - 365 * 86400, end=NOW_S, step=86400)
    found = priced(FakeMetrics(SMALL, retention="30d or 10GiB"), year)
    assert 0.9 < found.samples / (30 * 100) < 1.2
    assert refusal(FakeMetrics(SMALL), year).reason == "range_too_long"


@pytest.mark.parametrize(
    ("honours_limit", "reason"), [(False, "too_many_values"), (True, None)], ids=["limit_ignored", "limit_honoured"]
)
def test_values_of_a_label_with_many_are_refused_or_limited(honours_limit: bool, reason: str | None) -> None:
    found = verdict(large(honours_limit=honours_limit), operation("label/pod/values"))
    if reason is None:
        assert isinstance(found, Allow)
        assert ("limit", "10000") in found.parameters
    else:
        assert isinstance(found, Refuse)
        assert (found.reason, found.price.items) == (reason, 12_000)


def test_values_of_one_namespace_are_few() -> None:
    found = verdict(large(), operation("label/pod/values", ("match[]", 'memory_bytes{namespace="n-1"}')))
    assert isinstance(found, Allow)


def test_label_names_are_cheap_even_of_everything() -> None:
    assert isinstance(verdict(large(), operation("labels")), Allow)
    assert isinstance(verdict(large(), operation("labels", ("match[]", '{le!=""}'))), Allow)


def test_federation_of_everything_is_refused() -> None:
    asked = parse("GET", "/federate", [("match[]", '{__name__=~".+"}')], "", b"", NOW_S)
    assert refusal(large(), asked).reason == "too_many_series"


def test_targets_of_a_large_fleet_are_refused_unless_they_are_fewer() -> None:
    server = FakeMetrics([{"__name__": "up", "instance": f"n-{node}"} for node in range(300)], copies=100)
    found = refusal(server, operation("targets"))
    assert (found.reason, found.cheaper) == ("answer_too_large", "/api/v1/targets?state=active")
    assert isinstance(verdict(server, operation("targets", state="active")), Allow)


def test_raw_samples_of_a_long_range_are_an_answer_that_is_too_large() -> None:
    asked = operation("query", query="latency_bucket[1d]")
    assert refusal(FakeMetrics(SMALL), asked).reason == "answer_too_large"
    assert isinstance(verdict(FakeMetrics(SMALL), operation("query", query="sum(rate(latency_bucket[1d]))")), Allow)


def test_limit_of_a_query_makes_it_cheaper_only_where_the_server_honours_it() -> None:
    asked = operation("query", query="latency_bucket", limit=10)
    old = priced(FakeMetrics(SMALL), asked)
    new = priced(FakeMetrics(SMALL, honours_limit=True, build=MODERN), asked)
    assert old.answer_bytes > 50 * new.answer_bytes


def test_price_is_cached_for_its_tenant_only() -> None:
    async def counted() -> list[int]:
        server, asked, found = FakeMetrics(SMALL), operation("query", query="memory_bytes"), []
        pricer = Pricer(server, Clock())
        for tenant in ("a", "a", "b", "a"):
            await pricer.price(asked, tenant)
            found.append(len(server.queries))
        return found

    assert asyncio.run(counted()) == [2, 2, 4, 4], "a count, and some series for the size of the answer"


def test_equal_selectors_in_flight_are_counted_once() -> None:
    async def counted() -> int:
        server = FakeMetrics(SMALL)
        pricer = Pricer(server, Clock())
        queries = [f"rate(memory_bytes[{minutes}m])" for minutes in range(1, 30)]
        await asyncio.gather(*(pricer.price(operation("query", query=each), "") for each in queries))
        return len(server.counts)

    assert asyncio.run(counted()) == 1


def test_price_follows_a_server_that_grows() -> None:
    async def series() -> list[int]:
        server, clock = FakeMetrics(list(SMALL)), Clock()
        pricer = Pricer(server, clock)
        found = []
        for wait_s in (0, 20, 130):
            clock.now_s += wait_s
            price = await pricer.price(operation("query", query="memory_bytes"), "")
            assert price is not None
            found.append(price.series)
            server.series = fleet(500)
        return found

    assert asyncio.run(series()) == [100, 100, 500]


def test_price_that_is_a_little_old_is_used_while_it_is_asked_for_again() -> None:
    async def series() -> list[int]:
        server, clock = FakeMetrics(fleet(100)), Clock()
        pricer = Pricer(server, clock)
        found = []
        for _ in range(3):
            price = await pricer.price(operation("query", query="memory_bytes"), "")
            assert price is not None
            found.append(price.series)
            server.series = fleet(90)
            clock.now_s += 70
            await asyncio.sleep(0)
        return found

    assert asyncio.run(series()) == [100, 100, 90]


def test_failed_probe_is_repeated_after_a_while_only() -> None:
    async def asked() -> list[int]:
        server, clock, found = large(has_status=False), Clock(), []
        pricer = Pricer(server, clock)
        for wait_s in (0, 5, 15):
            clock.now_s += wait_s
            assert await pricer.price(operation("query", query='latency_bucket{pod=~"p.*"}'), "") is None
            found.append(len(server.queries))
        return found

    assert asyncio.run(asked()) == [1, 1, 2]


def test_client_that_leaves_does_not_cancel_the_probe_of_others() -> None:
    async def series() -> int:
        begun, gate = asyncio.Event(), asyncio.Event()

        class Slow(FakeMetrics):
            async def get(self, path, parameters, tenant, timeout_s, max_bytes):  # type: ignore[no-untyped-def]
                if path == "/api/v1/query":
                    begun.set()
                    await gate.wait()
                return await super().get(path, parameters, tenant, timeout_s, max_bytes)

        pricer = Pricer(Slow(SMALL), Clock())
        asked = operation("query", query="memory_bytes")
        first = asyncio.ensure_future(pricer.price(asked, ""))
        second = asyncio.ensure_future(pricer.price(asked, ""))
        await begun.wait()
        first.cancel()
        gate.set()
        found = await second
        assert found is not None
        return found.series

    assert asyncio.run(series()) == 100


def test_hostile_request_asks_for_a_bounded_number_of_probes() -> None:
    query = "+".join(f"sum(memory_bytes{{pod='p-{pod}'}} @ {NOW_S - pod * 86400:.0f})" for pod in range(50))
    server = FakeMetrics(SMALL)
    priced(server, operation("query", query=query))
    assert len(server.queries) <= 50


FORMS: list[tuple[Operation, Limits]] = [
    (ranged("rate(latency_bucket[5m])", HOUR_S, 1), Limits(max_samples=9_000_000)),
    (ranged("memory_bytes", 12 * HOUR_S, 1), Limits()),
    (ranged("memory_bytes", 90 * 86400, 86400), Limits()),
    (ranged("memory_bytes", HOUR_S, 10), Limits(max_answer_bytes=300_000)),
    (operation("series", ("match[]", '{le!=""}')), Limits(max_series=500)),
    (operation("labels", ("match[]", '{le!=""}')), Limits(max_samples=10_000)),
    (operation("series", ("match[]", "memory_bytes"), start=0), Limits()),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "limits"), FORMS)
def test_cheaper_form_of_a_refused_request_is_allowed(asked: Operation, limits: Limits) -> None:
    server = FakeMetrics(SMALL)
    found = refusal(server, asked, limits)
    path, _, query = found.cheaper.partition("?")
    assert path, found.message
    cheaper = parse("GET", path, parse_qsl(query), "", b"", NOW_S)
    assert isinstance(verdict(server, cheaper, limits), Allow)
