from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from muster.kube.client import JSON_PATCH, Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import StaticToken, TokenFile
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.support.closing import stopped
from tests.unit.kube.fakeapi import FakeApi, status

A = ConfigMap(metadata=ObjectMeta(name="a", namespace="default"), data={"k": "1"})


def refuse(times: int, answer: Callable[[], web.Response]) -> Callable[[web.Request], web.Response | None]:
    left = [times]

    def hook(_: web.Request) -> web.Response | None:
        left[0] -= 1
        return answer() if left[0] >= 0 else None

    return hook


async def test_the_life_of_an_object(client: Client, api: FakeApi) -> None:
    made = await client.create(A)
    assert (made.data, made.uid != "") == ({"k": "1"}, True)
    with pytest.raises(AlreadyExists):
        await client.create(A)
    changed = await client.replace(ConfigMap(metadata=made.metadata, data={"k": "2"}))
    with pytest.raises(Conflict):
        await client.replace(ConfigMap(metadata=made.metadata, data={"k": "3"}))
    assert (await client.get(ConfigMap, "a")).data == {"k": "2"}
    patched = await client.patch(ConfigMap, "a", {"data": {"k": "4"}}, field_manager="me")
    assert patched.data == {"k": "4"}
    assert api.requests[-1][2] == {"fieldManager": "me"}
    await client.delete(ConfigMap, "a", uid=changed.uid, resource_version="7", grace_s=0, propagation="Background")
    assert json.loads(api.requests[-1][3]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
        "preconditions": {"uid": changed.uid, "resourceVersion": "7"},
    }
    with pytest.raises(NotFound, match="a not found"):
        await client.get(ConfigMap, "a")


async def test_dicts_can_be_created_as_they_are(client: Client, api: FakeApi) -> None:
    def discovery(request: web.Request) -> web.Response | None:
        if request.path != "/apis/example.dev/v1":
            return None
        kinds = [{"name": "things", "kind": "Thing", "namespaced": True}, {"name": "things/status", "kind": "Thing"}]
        return web.json_response({"resources": kinds})

    api.before.append(discovery)
    thing = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"x": [1]}}
    assert (await client.create(thing, namespace="ns"))["spec"] == {"x": [1]}
    await client.create({**thing, "metadata": {"name": "u", "namespace": "own"}}, dry_run=True)
    assert [(path, params) for verb, path, params, _ in api.requests if verb == "POST"] == [
        ("/apis/example.dev/v1/namespaces/ns/things", {}),
        ("/apis/example.dev/v1/namespaces/own/things", {"dryRun": "All"}),
    ]
    with pytest.raises(NotFound, match="no kind Other"):
        await client.create({"apiVersion": "example.dev/v1", "kind": "Other", "metadata": {"name": "o"}})
    typed = await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}, kind=ConfigMap)
    assert isinstance(typed, ConfigMap)


async def test_bind_and_evict_carry_the_uid(client: Client, api: FakeApi) -> None:
    api.before.append(lambda request: web.json_response({"kind": "Status"}, status=201))
    await client.bind("p", "n1", namespace="ns", uid="u1")
    await client.evict("p", namespace="ns", uid="u1")
    (_, bind_path, _, bind), (_, evict_path, _, evict) = api.requests
    assert bind_path == "/api/v1/namespaces/ns/pods/p/binding"
    assert json.loads(bind)["metadata"]["uid"] == "u1"
    assert json.loads(bind)["target"]["name"] == "n1"
    assert evict_path == "/api/v1/namespaces/ns/pods/p/eviction"
    assert json.loads(evict)["deleteOptions"]["preconditions"] == {"uid": "u1"}


async def test_pages_are_followed_and_an_expired_token_is_gone(client: Client, api: FakeApi) -> None:
    for number in range(7):
        api.put(f"c{number}")
    listing = await client.list_all(ConfigMap, page=3)
    assert ([c.name for c in listing.items], listing.resource_version) == ([f"c{n}" for n in range(7)], "107")
    assert api.count("GET") == 3
    page = await client.list(ConfigMap, limit=2, label_selector="a in (b,c),!d")
    assert api.requests[-1][2]["labelSelector"] == "a in (b,c),!d"
    api.compact()
    with pytest.raises(Gone):
        await client.list(ConfigMap, limit=2, continue_=page.continue_)


async def test_watching_from_a_version(client: Client, api: FakeApi) -> None:
    first = api.put("a")
    api.put("b")
    api.put("a", data={"x": "1"})
    api.remove("b")
    seen = []
    async for event in client.watch(ConfigMap, resource_version=str(first)):
        seen.append((event.type, event.object.name))
        if len(seen) == 3:
            break
    assert seen == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    api.compact()
    with pytest.raises(Gone):
        async for _ in client.watch(ConfigMap, resource_version=str(first)):
            pass


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (403, "Forbidden", Forbidden),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ApiError),
        (504, "Timeout", ServerTimeout),
    ],
)
async def test_errors_by_meaning(client: Client, api: FakeApi, code: int, reason: str, kind: type[ApiError]) -> None:
    details = {"retryAfterSeconds": 1, "name": "a"}
    api.before.append(lambda _: web.json_response(status(code, reason, "said so", details), status=code))
    with pytest.raises(ApiError, match="said so") as raised:
        await client.request("POST", "/x", body=b"{}", retry_refused=False)
    assert type(raised.value) is kind
    assert (raised.value.status, raised.value.reason, raised.value.details["name"]) == (code, reason, "a")
    assert raised.value.retry_after_s == 1


async def test_answer_that_is_not_a_status_is_quoted(client: Client, api: FakeApi) -> None:
    api.before.append(lambda _: web.Response(status=500, text="panic: <html>"))
    with pytest.raises(ApiError, match="panic"):
        await client.request("POST", "/x")


@pytest.mark.parametrize("code", [429, 503])
async def test_refusals_with_retry_after_are_repeated_even_for_creates(client: Client, api: FakeApi, code: int) -> None:
    api.before.append(refuse(2, lambda: web.Response(status=code, headers={"Retry-After": "0"})))
    assert (await client.create(A)).name == "a"
    assert api.count("POST") == 3


async def test_retry_after_is_honoured(api: FakeApi, metrics: KubeMetrics) -> None:
    api.before.append(lambda _: web.Response(status=429, headers={"Retry-After": "40"}))
    async with Client(api.config(), metrics=metrics, retry_for_s=30) as client:
        with pytest.raises(TooManyRequests) as raised:  # 40 s is more than we are ready to wait
            await client.get(ConfigMap, "a")
    assert raised.value.retry_after_s == 40
    assert api.count("GET") == 1


async def test_eviction_forbidden_by_a_budget_fails_at_once(client: Client, api: FakeApi) -> None:
    api.before.append(lambda _: web.Response(status=429, headers={"Retry-After": "0"}))
    with pytest.raises(TooManyRequests):
        await client.evict("p", namespace="ns")
    assert api.count("POST") == 1


def drop(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("DELETE", 2), ("PUT", 2), ("POST", 1), ("PATCH", 1)])
async def test_only_what_may_be_sent_twice_is_sent_again_after_a_lost_connection(
    client: Client, api: FakeApi, method: str, times: int
) -> None:
    api.put("a")
    left = [1]

    def once(request: web.Request) -> web.Response | None:
        left[0] -= 1
        return drop(request) if left[0] == 0 else None

    api.before.append(once)
    path = "/api/v1/namespaces/default/configmaps/a"
    body = json.dumps({"metadata": {"name": "b"}}).encode() if method != "GET" else None
    if times == 1:
        with pytest.raises(Unavailable, match="lost"):
            await client.request(method, path, body=body)
    else:
        await client.request(method, path, body=body)
    assert api.count(method) == times


async def test_creates_and_merge_patches_are_repeated_when_the_caller_can_bear_it(client: Client, api: FakeApi) -> None:
    left = [1]

    def once(request: web.Request) -> web.Response | None:
        left[0] -= 1
        return drop(request) if left[0] == 0 else None

    api.before.append(once)
    assert (await client.create(A, retry_lost=True)).name == "a"
    left[0] = 1
    assert (await client.patch(ConfigMap, "a", {"data": {}})).name == "a"
    left[0] = 1
    with pytest.raises(Unavailable):
        await client.patch(ConfigMap, "a", [], content_type=JSON_PATCH)


async def test_a_silent_server_meets_a_deadline(api: FakeApi, metrics: KubeMetrics) -> None:
    async def hang(_: web.Request) -> None:
        await asyncio.sleep(60)

    api.before.append(hang)
    async with Client(api.config(), timeout_s=0.05, metrics=metrics, retry_for_s=0) as client:
        with pytest.raises(ServerTimeout, match=r"no answer from .* within 0.05 s"):
            await client.get(ConfigMap, "a")


async def test_a_refused_connection_says_so(metrics: KubeMetrics) -> None:
    config = ClusterConfig(server="http://127.0.0.1:1")
    async with Client(config, metrics=metrics, retry_for_s=0) as client:
        with pytest.raises(Unavailable, match="refused; is the cluster running"):
            await client.get(ConfigMap, "a")


async def test_a_rejected_token_is_explained_and_not_shown(api: FakeApi, metrics: KubeMetrics) -> None:
    api.before.append(lambda _: web.json_response(status(401, "Unauthorized"), status=401))
    async with Client(api.config(StaticToken("s3cret")), metrics=metrics) as client:
        with pytest.raises(Unauthorized, match="expired; log in again") as raised:
            await client.get(ConfigMap, "a")
    assert api.count("GET") == 1
    assert "s3cret" not in str(raised.value) + repr(client.config)


async def test_a_rotated_token_file_is_read_again_after_a_401(
    api: FakeApi, metrics: KubeMetrics, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def check(request: web.Request) -> web.Response | None:
        good = request.headers["Authorization"] == "Bearer new"
        return None if good else web.json_response(status(401, "Unauthorized"), status=401)

    api.before.append(check)
    api.put("a")
    async with Client(api.config(TokenFile(file)), metrics=metrics) as client:
        with pytest.raises(Unauthorized):
            await client.get(ConfigMap, "a")
        file.write_text("new")
        assert (await client.get(ConfigMap, "a")).name == "a"
        file.write_text("gone again")  # a good token is kept while it works
        assert (await client.get(ConfigMap, "a")).name == "a"


@pytest.mark.parametrize("content", [b"", b"new\xff\x00", b"new\nold"], ids=["empty", "not text", "two lines"])
async def test_token_file_that_cannot_be_used_leaves_the_last_token_in_use(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    token = TokenFile(file, max_age_s=0)
    assert await token.authorization() == "Bearer old"
    file.write_bytes(content)
    assert await token.authorization() == "Bearer old"
    assert not token.invalidate("Bearer old")
    file.write_text("new")
    assert await token.authorization() == "Bearer new"


async def test_watches_do_not_use_up_the_connections_of_requests(api: FakeApi, metrics: KubeMetrics) -> None:
    api.put("a")
    async with Client(api.config(), connections=1, metrics=metrics) as client:
        watches = [client.watch(ConfigMap, resource_version="100") for _ in range(3)]
        for watch in watches:
            assert (await anext(watch)).object.name == "a"
        assert (await client.get(ConfigMap, "a")).name == "a"
        for watch in watches:
            await watch.aclose()  # type: ignore[attr-defined]


async def test_streams_are_checked_and_read_as_they_come(client: Client, api: FakeApi) -> None:
    def log(request: web.Request) -> web.Response | None:
        return web.Response(body=b"line 1\nline 2\n") if request.path.endswith("/log") else None

    api.before.append(log)
    async with client.stream("GET", "/api/v1/namespaces/ns/pods/p/log", params={"follow": "true"}) as response:
        assert await response.content.readline() == b"line 1\n"
    with pytest.raises(NotFound):
        async with client.stream("GET", "/api/v1/namespaces/ns/configmaps/p"):
            pass


async def test_websockets(client: Client, api: FakeApi) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        if request.path != "/ws":
            return web.json_response(status(403, "Forbidden", "no exec for you"), status=403)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(await socket.receive_bytes())
        await socket.close()
        return socket

    api.before.append(echo)
    async with client.websocket("/ws", protocols=("v5.channel.k8s.io",)) as socket:
        assert socket.protocol == "v5.channel.k8s.io"
        await socket.send_bytes(b"\x00hi")
        assert await socket.receive_bytes() == b"\x00hi"
    with pytest.raises(Forbidden, match="no exec for you"):
        async with client.websocket("/other"):
            pass


async def test_requests_are_counted(client: Client, api: FakeApi, registry: CollectorRegistry) -> None:
    await client.list(ConfigMap)
    with pytest.raises(NotFound):
        await client.get(ConfigMap, "a")

    def value(**labels: str) -> Any:
        return registry.get_sample_value("muster_api_requests_total", labels)

    assert (value(verb="LIST", code="200"), value(verb="GET", code="404")) == (1, 1)


async def test_tls_with_client_certificates(tmp_path: Path, metrics: KubeMetrics) -> None:
    authority = CertificateAuthority.create()
    server, user = authority.issue_server("server", ["127.0.0.1", "localhost"]), authority.issue_client("me")
    cert, key = tmp_path / "cert", tmp_path / "key"
    server.write(cert, key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate.decode())
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peercert")["subject"])
        return web.json_response({"metadata": {"name": "a"}})

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        config = ClusterConfig(url, authority.certificate, user.certificate, user.key)
        async with Client(config, metrics=metrics) as client:
            assert (await client.get(ConfigMap, "a")).name == "a"
        assert "me" in str(seen)
        stranger = CertificateAuthority.create()
        wrong = ClusterConfig(url, stranger.certificate, user.certificate, user.key)
        async with Client(wrong, metrics=metrics, rng=random.Random(1)) as client:
            with pytest.raises(Unavailable, match="check certificate-authority") as raised:
                await client.get(ConfigMap, "a")
        assert raised.value.reason == "TLSFailure"
        renamed = ClusterConfig(url, authority.certificate, user.certificate, user.key, tls_server_name="localhost")
        async with Client(renamed, metrics=metrics) as client:
            assert (await client.get(ConfigMap, "a")).name == "a"
    finally:
        await stopped(runner)
