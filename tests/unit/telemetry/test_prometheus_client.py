"""The client of Prometheus' HTTP API: bounds, errors, credentials, and servers that are something else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from muster.telemetry.prometheus.client import PrometheusClient, matchers, server_url
from muster.telemetry.prometheus.durations import seconds_of
from muster.telemetry.prometheus.errors import PrometheusError
from muster.telemetry.prometheus.page import parse_page
from tests.support.fakeprometheus import Handler, serving


def answering(data: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "success", "data": data})

    return handler


def vector_of(sample: str) -> str:
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{sample}]}}}}'


async def failure(handler: Handler, **options: Any) -> PrometheusError:
    async with serving(handler) as url, PrometheusClient(url, **options) as client:
        with pytest.raises(PrometheusError) as caught:
            await client.query("up")
    return caught.value


async def test_answer_above_the_limit_is_cut_while_it_arrives() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(100_000):
                await answer.write(bytes(100_000))
                sent += 100_000
        return answer

    error = await failure(endless, max_bytes=1_000_000)
    assert error.reason == "too-big"
    assert sent < 100_000_000


async def test_slow_answer_ends_at_the_deadline() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"{")
        await asyncio.sleep(60)
        return answer

    assert (await failure(slow, timeout_s=0.2)).reason == "timeout"


async def test_redirect_is_not_followed_with_the_token(tmp_path: Path) -> None:
    seen: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        raise web.HTTPFound("/other")

    (tmp_path / "token").write_text("secret\n")
    error = await failure(redirect, token_file=tmp_path / "token")
    assert (error.reason, seen) == ("not-prometheus", ["/api/v1/query"])


@pytest.mark.parametrize(
    ("status", "body", "reason", "text"),
    [
        (200, "<html>login</html>", "not-prometheus", "not one of"),
        (
            200,
            '{"status":"success","data":{"resultType":"vector","result":[{"value":"x"}]}}',
            "not-prometheus",
            "not one",
        ),
        (200, vector_of('{"metric":{"__name__":5},"value":[1,"1"]}'), "not-prometheus", "not one"),
        (200, vector_of('{"metric":"x","value":[1,"1"]}'), "not-prometheus", "not one"),
        (200, vector_of('{"metric":{},"value":[1,"x"]}'), "not-prometheus", "not one"),
        (403, "RBAC: access denied\n", "refused", "403: RBAC: access denied"),
        (422, '{"status":"error","errorType":"execution","error":"too many samples"}', "refused", "too many samples"),
        (503, '{"status":"error","errorType":"timeout","error":"query timed out"}', "timeout", "timed out"),
        (200, '{"status":"success","data":{"resultType":"matrix","result":[]}}', "refused", "matrix"),
        (502, "", "refused", "502: nothing"),
    ],
)
async def test_errors_say_what_the_server_said(status: int, body: str, reason: str, text: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    error = await failure(handler)
    assert (error.reason, error.status) == (reason, status)
    assert text in error.message


async def test_no_server_is_unreachable() -> None:
    async with PrometheusClient("http://127.0.0.1:1") as client:
        with pytest.raises(PrometheusError, match="Connection refused") as caught:
            await client.targets()
    assert caught.value.reason == "unreachable"


async def test_token_is_read_again_for_each_request_and_tenant_is_sent(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    token = tmp_path / "token"

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers["Authorization"], request.headers["X-Scope-OrgID"]))
        return await answering({"resultType": "scalar", "result": [1.5, "+Inf"]})(request)

    options: dict[str, Any] = {"token_file": token, "headers": {"X-Scope-OrgID": "team"}}
    async with serving(handler) as url, PrometheusClient(url, **options) as client:
        for text in ("one", "two\n"):
            token.write_text(text)
            assert await client.value("x") == float("inf")
        for text in ("", "a\nb", "\x01"):
            token.write_text(text)
            with pytest.raises(PrometheusError, match="secret"):
                await client.value("x")
        token.unlink()
        with pytest.raises(PrometheusError, match="No such file"):
            await client.value("x")
    assert seen == [("Bearer one", "team"), ("Bearer two", "team")]


async def test_long_parameters_are_a_form_and_short_ones_are_not() -> None:
    methods: list[tuple[str, int]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        query = request.query.get("query") or (await request.post())["query"]
        methods.append((request.method, len(str(query))))
        return await answering({"resultType": "vector", "result": []})(request)

    async with serving(handler) as url, PrometheusClient(url) as client:
        await client.query("up")
        await client.query("up" * 5000)
    assert methods == [("GET", 2), ("POST", 10_000)]


async def test_limits_times_and_names_are_sent_as_the_api_wants_them() -> None:
    seen: list[tuple[str, list[tuple[str, str]]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.raw_path.partition("?")[0], list(request.query.items())))
        return await answering([])(request)

    async with serving(handler) as url, PrometheusClient(f"{url}/prefix/") as client:
        await client.series(["up", "{a='b'}"], 1.5, 2, 7)
        await client.label_values("a/b", ["up"], limit=3)
    of_series = [("match[]", "up"), ("match[]", "{a='b'}"), ("start", "1.500"), ("end", "2.000"), ("limit", "7")]
    assert seen == [
        ("/prefix/api/v1/series", of_series),
        ("/prefix/api/v1/label/a%2Fb/values", [("match[]", "up"), ("limit", "3")]),
    ]


async def test_cardinality_of_mimir_is_read() -> None:
    names = {"label_name": "__name__", "cardinality": [{"label_value": "up", "series_count": 4}]}
    page = {"series_count_total": 9, "labels": [names]}

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["label_names[]"] == "__name__"
        return web.Response(text=json.dumps(page))

    async with serving(handler) as url, PrometheusClient(url) as client:
        found = await client.cardinality("__name__", 5)
    assert (found.series_count_total, [(each.name, each.value) for each in found.counts]) == (9, [("up", 4)])


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://x", "http://", "http://x?y=1", "http://x:port", "", "http://[::1"]
)
def test_wrong_address_says_what_to_write(url: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        server_url(url)


def test_password_in_an_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="file") as caught:
        server_url("http://me:hunter2@x:9090")
    assert "hunter2" not in str(caught.value)


def test_address_of_the_api_is_that_of_the_server() -> None:
    assert server_url("https://x/prometheus/api/v1/") == "https://x/prometheus"


def test_values_of_matchers_are_escaped() -> None:
    assert matchers([("a", 'x"\\\n')]) == '{a="x\\"\\\\\\n"}'


def test_durations_are_those_of_prometheus() -> None:
    assert [seconds_of(each) for each in ("0", "250ms", "1h30m", "2w")] == [0, 0.25, 5400, 1_209_600]
    for wrong in ("", "1", "h", "1x", "-1s", "1 h", "30m1h", "1h1h", "\u0661h", "9" * 400 + "y"):
        with pytest.raises(ValueError, match="duration"):
            seconds_of(wrong)


def test_page_that_is_something_else_is_an_error() -> None:
    assert parse_page(b'a{b="c"} 1\na{b="d"} 2\n').value("a") == 3
    for body in (b"<html>", b"\xff\xfe", b"a b c"):
        with pytest.raises(PrometheusError):
            parse_page(body)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (f'{{"headStats": {{"numSeries": {10**400}}}}}', "Expected `int`"),
        (f'{{"seriesCountByMetricName": [{{"name": "up", "value": {1 << 63}}}]}}', "Expected `int`"),
        (f'{{"headStats": {{"other": {"[" * 100_000}{"]" * 100_000}}}}}', "recursion"),
    ],
)
async def test_numbers_and_depths_that_no_server_has_are_not_its_answers(data: str, why: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f'{{"status": "success", "data": {data}}}', content_type="application/json")

    async with serving(handler) as url, PrometheusClient(url) as client:
        with pytest.raises(PrometheusError, match=why) as caught:
            await client.tsdb_status(10)
    assert caught.value.reason == "not-prometheus"
