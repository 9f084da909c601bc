"""Issue 17, A1: what probes find out about label sets, and what prices make of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing import details
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.prometheus.probe import PROBE_MATCHER
from tests.support.fakemetrics import BUILD, FakeMetrics

NOW_S = 1_800_000_000.0
NEW: dict[str, Any] = {"honours_limit": True, "build": {"version": "3.16.0", "revision": "r"}}
OLD: dict[str, Any] = {"honours_limit": False, "build": BUILD}
SERVERS = pytest.mark.parametrize("release", [OLD, NEW], ids=["limit_ignored", "limit_honoured"])
LONG = "x" * 300


def routes() -> list[dict[str, str]]:
    """600 series; code and tier go together, so that their sets are fewer than all pairs of values."""
    return [
        {
            "__name__": "requests",
            "route": f"/{number}/{LONG}",
            "code": str(code),
            "tier": f"t{code}",
            "pod": f"p{number}",
        }
        for number in range(60)
        for code in range(10)
    ]


def operation(path: str, *pairs: tuple[str, str], **named: object) -> Operation:
    texts = [(name, str(value)) for name, value in named.items()]
    return parse("GET", f"/api/v1/{path}", [*texts, *pairs], "", b"", NOW_S)


def query(text: str) -> Operation:
    return operation("query", query=text)


def priced(server: FakeMetrics, *asked: Operation) -> Price:
    """Return the price of the last operation."""

    async def prices() -> Price | None:
        pricer = Pricer(server, lambda: 0.0)
        return [await pricer.price(each, "") for each in asked][-1]

    found = asyncio.run(prices())
    assert found is not None
    return found


def answer_bytes(sets: list[dict[str, str]]) -> int:
    """Bytes of a vector with these label sets."""
    result = [{"metric": each, "value": [NOW_S, "12.3456"]} for each in sets]
    data = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return len(json.dumps(data, separators=(",", ":")))


def distinct(*labels: str) -> list[dict[str, str]]:
    found = {tuple((name, each[name]) for name in labels) for each in routes()}
    return [dict(each) for each in sorted(found)]


@SERVERS
@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("requests", routes()),
        ("sum by (route) (requests)", distinct("route")),
        ("sum by (code, tier) (rate(requests[5m]))", distinct("code", "tier")),
        ("sum without (route, pod) (requests)", distinct("code", "tier")),
        ("max without (code) (requests)", distinct("route", "tier", "pod")),
        ("sum(requests)", [{}]),
        ("sum by (code) (requests{code='3'})", [{"code": "3"}]),
        ("topk by (tier) (2, requests)", routes()[:20]),
        ("requests / on (route) sum by (route) (requests)", distinct("route")),
    ],
)
def test_answer_is_as_long_as_its_label_sets(release: dict[str, Any], text: str, sets: list[dict[str, str]]) -> None:
    found = priced(FakeMetrics(routes(), **release), query(text))
    assert 0.7 < found.answer_bytes / answer_bytes(sets) < 1.4


def test_points_of_native_histograms_are_as_long_as_those_that_were_sent() -> None:
    histogram = {"histogram": [NOW_S, {"count": "30", "buckets": [[0, "0.1", "0.2", "3"]] * 40}]}
    server = FakeMetrics(routes(), point=histogram, samples_each=41, **NEW)
    plain, counted = priced(server, query("requests")), priced(server, query("histogram_count(requests)"))
    size = 600 * len(json.dumps(histogram["histogram"]))
    assert size < plain.answer_bytes - counted.answer_bytes < 1.2 * size
    assert plain.samples == 600 * 41


@SERVERS
@pytest.mark.parametrize(
    ("path", "match", "items"),
    [
        ("label/route/values", "requests", 60),
        ("label/code/values", "requests", 10),
        ("label/code/values", "requests{route=~'/1/.*'}", 10),
        ("label/tier/values", "requests{code='3'}", 1),
        ("label/code/values", "requests{code='3'}", 1),
        ("label/absent/values", "requests", 0),
        ("label/code/values", "", 10),
        ("label/route/values", "", 60),
        ("label/absent/values", "", 0),
        ("labels", "", 5),
        ("labels", "requests", 5),
        ("labels", "few", 2),
    ],
)
def test_values_and_names_are_counted(release: dict[str, Any], path: str, match: str, items: int) -> None:
    more = [{"__name__": "few", "own": "1"}] if match == "few" else []
    server = FakeMetrics([*routes(), *more], **release)
    asked = operation(path, *([("match[]", match)] if match else []))
    assert priced(server, asked).items == items


@SERVERS
def test_bytes_of_values_follow_their_length(release: dict[str, Any]) -> None:
    for pairs in ((), (("match[]", "requests"),)):
        long = priced(FakeMetrics(routes(), **release), operation("label/route/values", *pairs)).answer_bytes
        short = priced(FakeMetrics(routes(), **release), operation("label/tier/values", *pairs)).answer_bytes
        assert 0.8 < long / (60 * (len(LONG) + 7)) < 1.2
        assert 0.5 < short / (10 * len('"t1",')) < 2


def test_values_beyond_the_limit_of_a_probe_are_counted_by_the_status() -> None:
    pods = [{"__name__": "up", "pod": f"pod-{number:05d}"} for number in range(3000)]
    found = priced(FakeMetrics(pods, **NEW), operation("label/pod/values"))
    assert found.items == 3000
    assert 0.9 < found.answer_bytes / (3000 * len('"pod-00000",')) < 1.1


def test_names_of_several_selectors_are_asked_for_together() -> None:
    server = FakeMetrics([*routes(), {"__name__": "few", "own": "1"}])
    asked = operation("labels", ("match[]", "few"), ("match[]", "requests{code='1'}"))
    assert priced(server, asked).items == 6


@SERVERS
def test_names_of_very_many_series_are_those_of_some(release: dict[str, Any]) -> None:
    others = [{"__name__": "other", f"own_{number}": "1"} for number in range(30)]
    server = FakeMetrics([*routes(), *others], copies=30, **release)
    assert priced(server, operation("labels", ("match[]", "requests"))).items == 5
    asked = [dict(given) for path, given in server.asked if path == "/api/v1/labels"]
    assert not any("match[]" in given for given in asked), "a server cannot bound what this costs"


def test_selector_that_was_not_counted_has_no_further_probes() -> None:
    server = FakeMetrics(routes(), copies=400)
    found = priced(server, query('sum by (route, pod) ({code!=""})'))
    assert (server.queries, found.known) == ([], "bounded")


def test_series_of_one_metric_are_looked_at_once() -> None:
    server = FakeMetrics(routes())
    priced(server, *(query(f"requests{{code='{code}'}}") for code in range(10)))
    assert len(server.queries) - len(server.counts) == 1


def test_labels_that_matchers_fix_need_no_probe() -> None:
    server = FakeMetrics(routes())
    priced(server, query("sum by (code, tier) (requests{code='3',tier='t3'})"))
    assert not any(each.startswith("count(count") for each in server.queries)


def test_probes_of_many_selectors_are_bounded() -> None:
    text = " + ".join(f"sum by (route) (requests{{code='{pod % 10}',pod='p{pod}'}})" for pod in range(40))
    server = FakeMetrics(routes())
    priced(server, query(text))
    assert len(server.queries) - len(server.counts) <= 11


def test_very_many_series_are_only_counted() -> None:
    build = {"version": "2.15.0", "revision": "r", "application": "Grafana Mimir"}
    server = FakeMetrics(routes(), copies=200, has_status=False, build=build)
    assert priced(server, query("sum by (code, tier) (requests)")).series == 120_000
    assert len(server.queries) == len(server.counts) == 1


@SERVERS
def test_series_without_a_label_add_no_value(release: dict[str, Any]) -> None:
    series = [{"__name__": "x", "pod": f"p{number}"} for number in range(9)]
    series += [{"__name__": "x", "zone": f"z{number}"} for number in range(3)]
    series += [{"__name__": "other", "zone": f"o{number}"} for number in range(20)]
    assert priced(FakeMetrics(series, **release), operation("label/zone/values", ("match[]", "x"))).items == 3


def test_details_that_fail_leave_the_bound() -> None:
    class NoDetails(FakeMetrics):
        def _query(self, given: Any) -> dict[str, Any]:
            return {"result": "none"} if not given["query"].startswith("count(last") else super()._query(given)

    found = priced(NoDetails(routes()), query("sum by (code, tier) (requests)"))
    assert 100 * 26 < found.answer_bytes < 100 * 200, "each of 10 codes with each of 10 tiers"


def test_slow_details_leave_the_bound_and_count_once_they_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "WAIT_S", 0.01)

    async def sizes() -> list[int]:
        gate = asyncio.Event()

        class Slow(FakeMetrics):
            async def get(self, path, parameters, tenant, timeout_s, max_bytes):  # type: ignore[no-untyped-def]
                if path == "/api/v1/query" and not dict(parameters)["query"].startswith("count(last"):
                    await gate.wait()
                return await super().get(path, parameters, tenant, timeout_s, max_bytes)

        pricer, found = Pricer(Slow(routes()), lambda: 0.0), []
        for _ in range(2):
            price = await pricer.price(query("sum by (code, tier) (requests)"), "")
            assert price is not None
            found.append(price.answer_bytes)
            gate.set()
            monkeypatch.setattr(details, "WAIT_S", 60.0)
        return found

    bound, exact = asyncio.run(sizes())
    assert bound > 5 * exact


def test_number_of_label_sets_is_asked_for_again_once_there_are_more_series() -> None:
    async def sizes() -> list[int]:
        server, now = FakeMetrics(routes()[:100]), [0.0]
        pricer = Pricer(server, lambda: now[0])
        found = []
        for _ in range(2):
            price = await pricer.price(query("sum by (route) (requests)"), "")
            assert price is not None
            found.append(price.answer_bytes)
            server.series = routes()
            now[0] += 130
        return found

    before, after = asyncio.run(sizes())
    assert 5 < after / before < 7


def test_probes_are_marked_so_that_they_do_not_count_as_use() -> None:
    server = FakeMetrics(routes())
    priced(server, query("sum by (route) (requests)"), operation("labels", ("match[]", "requests")))
    texts = [text for _, given in server.asked for name, text in given.items() if name in ("query", "match[]")]
    assert len(texts) == 4
    assert all(PROBE_MATCHER in each for each in texts)


def test_series_that_a_status_lists_by_label_bound_what_has_the_label() -> None:
    series = [{"__name__": "bucket", "le": str(number % 8), "pod": f"p{number}"} for number in range(800)]
    series += [{"__name__": "gauge", "pod": f"p{number}"} for number in range(800)]
    server = FakeMetrics(series, copies=100, **NEW)
    found = priced(server, operation("series", ("match[]", '{le!=""}')))
    assert (found.series, found.known, server.queries) == (80_000, "bounded", [])
    assert priced(FakeMetrics(series, copies=100, **OLD), query('{le!=""}')).series >= 80_000


def test_selector_that_nothing_narrows_is_not_probed_though_few_series_have_its_label() -> None:
    series = [{"__name__": "bucket", "le": str(number % 8), "pod": f"p{number}"} for number in range(300)]
    series += [{"__name__": "gauge", "pod": f"p{number}"} for number in range(800)]
    server = FakeMetrics(series, copies=100, **NEW)
    assert priced(server, query('{le!=""}')).series == 30_000
    assert server.queries == []


def test_limit_bounds_the_answer_in_proportion() -> None:
    server = FakeMetrics(routes(), copies=200, **NEW)
    asked = operation("series", ("match[]", '{code=~".+"}'))
    capabilities = Capabilities(flavour="prometheus", limits_metadata=True)
    limited = 10_000 / 120_000 * priced(server, asked).answer_bytes
    for max_bytes, verdict in ((limited * 1.01, Allow), (limited * 0.99, Refuse)):
        limits = Limits(max_answer_bytes=int(max_bytes))
        assert isinstance(decide(asked, priced(server, asked), limits, capabilities), verdict)


def test_status_gives_the_length_of_label_sets_that_are_not_looked_at() -> None:
    server = FakeMetrics(routes(), copies=200, **NEW)
    found = priced(server, operation("series", ("match[]", '{code=~".+"}')))
    assert 1 < found.answer_bytes / (200 * (answer_bytes(routes()) - 600 * 50)) < 1.5


def test_status_that_counts_each_value_once_does_not_show_how_long_label_sets_are() -> None:
    found = priced(FakeMetrics(routes(), copies=200, **OLD), operation("series", ("match[]", '{code=~".+"}')))
    assert found.answer_bytes == 120_000 * 203
