"""The read cache writes a line for each request, without tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kube.objects.auth import UserInfo
from muster.kube.requestlog import RequestLine
from muster.readcache.access.access import Admitted
from muster.readcache.access.user import User
from muster.readcache.request import Answer, Request
from muster.readcache.requestlog import RequestTracer, Trace
from tests.support.rawclient import Client
from tests.support.waiting import until
from tests.unit.readcache.serving.stand_ins import JSON, FakeWatch, serving

CLAIMS = {
    "sub": "system:serviceaccount:monitoring:telemetry",
    "kubernetes.io": {"namespace": "monitoring", "pod": {"name": "telemetry-1"}, "node": {"name": "node-1"}},
}


def token(claims: Any) -> str:
    parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".signature"


def traced(lines: list[RequestLine], path: str, query: dict[str, str] | None = None, **headers: str) -> Trace:
    request = Request("GET", path, path, query or {}, tuple(headers.items()), "10.0.0.9")
    trace = RequestTracer(lines.append, node="").began(request)
    assert trace is not None
    return trace


async def ask(client: Client, path: str, *headers: str) -> None:
    await client.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: c", *headers, "", ""]))


class NamedGate:
    async def admit(self, target: object, request: Request) -> Admitted:
        extra = {"authentication.kubernetes.io/pod-name": ("p1",), "authentication.kubernetes.io/node-name": ("n1",)}
        return Admitted(User(UserInfo(username="system:serviceaccount:a:b", extra=extra)))


async def test_cached_list_and_pushed_watch_have_lines_with_user_size_and_events() -> None:
    lines: list[RequestLine] = []
    async with serving() as served:
        served.server._tracer = RequestTracer(lines.append)
        served.server._gate = NamedGate()
        served.server._route = lambda request: object()  # type: ignore[assignment,return-value]
        watch = FakeWatch((b"first\n",))
        served.reads.answers = {"/api/v1/pods": Answer(200, JSON, (b"x" * 50,)), "/api/v1/nodes": watch}
        one = await served.connect()
        await one.get(
            "/api/v1/pods?resourceVersion=0&limit=5", "User-Agent: agent/1", f"Authorization: Bearer {token({})}"
        )
        await ask(one, "/api/v1/nodes?watch=1")
        await one.head()
        await one.chunk()
        await until("the watch is pushed", lambda: watch.subscriptions)
        watch.push(b"a\n", b"bb\n")
        await one.chunk()
        await one.close()
        await until("the watch has its last line", lambda: len(lines) == 3)
    listed, opened, ended = lines
    assert (listed.verb, listed.resource, listed.limit, listed.resource_version) == ("list", "pods", 5, "0")
    assert (listed.user, listed.pod, listed.node) == ("system:serviceaccount:a:b", "p1", "n1")
    assert (listed.code, listed.bytes, listed.events, listed.user_agent) == (200, 50, -1, "agent/1")
    assert (opened.open, opened.verb, opened.bytes) == (True, "watch", -1)
    assert (ended.open, ended.events, ended.bytes, ended.id) == (False, 3, 11, opened.id)


async def test_no_request_is_followed_if_the_log_is_off() -> None:
    async with serving() as served:
        served.reads.answers = {"/cached/pods": Answer(200, JSON, (b"{}",))}
        one = await served.connect()
        assert (await one.get("/cached/pods")).status == 200
        await one.close()


def test_claims_of_a_forwarded_token_are_used_only_if_the_api_server_accepts_it() -> None:
    lines: list[RequestLine] = []
    for code in (200, 401):
        traced(lines, "/api/v1/pods", authorization=f"Bearer {token(CLAIMS)}").ended(code)
    accepted, refused = lines
    assert (accepted.user, accepted.pod, accepted.node) == (CLAIMS["sub"], "telemetry-1", "node-1")
    assert (refused.user, refused.pod, refused.node) == ("", "", "")


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()), st.just(token([]))))
def test_any_authorization_header_gives_a_line_without_it(text: str) -> None:
    for header in (
        f"Bearer a.{text}.c",
        f"Bearer {text}",
        text,
        f"Bearer {token({'sub': [text], 'kubernetes.io': text})}",
    ):
        lines: list[RequestLine] = []
        traced(lines, "/api/v1/pods", authorization=header).ended(200)
        (line,) = lines
        assert "Bearer" not in line.user


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_framed_events_are_counted_however_the_bytes_are_cut(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(each).to_bytes(4, "big") + each for each in events)
    lines: list[RequestLine] = []
    trace = traced(lines, "/api/v1/pods", {"watch": "1"})
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, 64))
        trace.count(stream[at : at + step], framed=True)
        at += step
    trace.ended(200)
    assert (lines[0].events, lines[0].bytes) == (len(events), len(stream))


def test_request_that_ends_twice_has_one_line() -> None:
    lines: list[RequestLine] = []
    trace = traced(lines, "/api/v1/pods")
    trace.ended(200)
    trace.ended(0)
    assert [line.code for line in lines] == [200]


@pytest.mark.parametrize("path", ["/healthz", "/version", "/apis/apps/v1", "/"])
def test_requests_without_a_resource_have_no_line(path: str) -> None:
    assert RequestTracer(lambda line: None).began(Request("GET", path, path, {}, ())) is None
