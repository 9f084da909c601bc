"""The agent's requests against servers that refuse, close, stall and talk nonsense: each is an error it can act on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from dataclasses import dataclass, field

import pytest

from muster.agent.api import AgentApi, retry_after_s
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import Anonymous
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import ApiError, NotFound, ServerTimeout, TooManyRequests, Unauthorized, Unavailable
from tests.support.waiting import until
from tests.unit.agent.answers import OK, Answer, Server, always, serving, status, tls_of


def api(server: Server, credentials: Anonymous | None = None, timeout_s: float = 30.0) -> AgentApi:
    config = ClusterConfig(server=server.url, credentials=credentials or Anonymous())
    return AgentApi(config, user_agent="muster-agent/test", timeout_s=timeout_s)


async def test_requests_share_a_connection_and_say_who_asks() -> None:
    async with serving(always(OK)) as server:
        asking = api(server)
        for _ in range(3):
            assert await asking.request("PATCH", "/x", b"[]", "application/json-patch+json") == b"{}"
        asking.close()
    assert server.connections == 1
    assert server.requests[0].startswith(b"PATCH /base/x HTTP/1.1\r\n")
    assert b"User-Agent: muster-agent/test" in server.requests[0]
    assert server.requests[0].endswith(b"\r\n\r\n[]")


async def test_closed_connection_is_reopened() -> None:
    async with serving(always(OK, keep=False)) as server:
        asking = api(server)
        for _ in range(3):
            assert await asking.request("GET", "/x") == b"{}"
        asking.close()
    assert server.connections == 3


@pytest.mark.parametrize(
    ("data", "kind", "wait_s"),
    [
        (status(429, "TooManyRequests", b"Retry-After: 7"), TooManyRequests, 7.0),
        (status(503, "ServiceUnavailable", b"Retry-After: 86400"), Unavailable, 600.0),
        (status(404, "NotFound"), NotFound, None),
        (b"HTTP/1.1 502 X\r\nContent-Length: 3\r\n\r\nbad", Unavailable, None),
        (b"\x16\x03\x01 this is not HTTP\r\n\r\n", Unavailable, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n", None, None),
        (b"", Unavailable, None),
    ],
)
async def test_every_answer_is_returned_or_raised_as_an_error(
    data: bytes, kind: type[ApiError] | None, wait_s: float | None
) -> None:
    async with serving(always(data, keep=False)) as server:
        asking = api(server)
        if kind is None:
            assert await asking.request("GET", "/x") == b""
        else:
            with pytest.raises(kind) as raised:
                await asking.request("GET", "/x")
            assert retry_after_s(raised.value) == wait_s
        asking.close()


async def test_unreachable_server_is_an_error() -> None:
    async with serving(always(OK)) as server:
        pass
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        await api(server).request("GET", "/x")


async def test_a_server_that_never_answers_is_given_up_and_asked_again_once_it_does() -> None:
    stalls = asyncio.Event()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if not stalls.is_set():
            await asyncio.sleep(3600)
        writer.write(OK)
        return True

    async with serving(answer) as server:
        asking = api(server, timeout_s=0.3)
        with pytest.raises((ServerTimeout, Unavailable)):
            await asking.request("GET", "/x")
        stalls.set()
        while True:
            try:
                assert await asking.request("GET", "/x") == b"{}"
                break
            except (ServerTimeout, Unavailable):  # what was left behind has not come back yet
                await asyncio.sleep(0.05)
        asking.close()


def dripping(hung_up: asyncio.Event) -> Answer:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if b"/drips" not in request:
            writer.write(OK)
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        try:
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            hung_up.set()
            raise

    return answer


async def test_a_server_that_drips_is_not_listened_to_for_ever() -> None:
    hung_up = asyncio.Event()
    async with serving(dripping(hung_up)) as server:
        asking = api(server, timeout_s=0.5)
        with pytest.raises(ServerTimeout):
            await asking.request("GET", "/drips")
        await hung_up.wait()
        await until("the next is answered", lambda: answers(asking))
        asking.close()


@dataclass(frozen=True)
class SlowFiles(ClusterConfig):
    """Its certificates are on a file system that answers late."""

    there: threading.Event = field(default_factory=threading.Event)

    def ssl_context(self, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext | None:
        assert self.there.wait(60)
        return super().ssl_context(certificate, key)


async def test_request_that_was_given_up_before_it_was_sent_is_not_sent() -> None:
    """Otherwise a server that drips would keep its thread, and with it all later requests."""
    authority = CertificateAuthority.create("a")
    async with serving(dripping(asyncio.Event()), tls_of(authority)) as server:
        config = SlowFiles(server=server.url, ca_data=authority.certificate)
        asking = AgentApi(config, user_agent="muster-agent/test", timeout_s=0.3)
        with pytest.raises(ServerTimeout):
            await asking.request("GET", "/drips")
        config.there.set()
        await until("the next is answered", lambda: answers(asking))
        asking.close()
    assert not [each for each in server.requests if b"/drips" in each]


async def answers(asking: AgentApi) -> bool:
    with contextlib.suppress(ServerTimeout, Unavailable):
        return await asking.request("GET", "/x") == b"{}"
    return False


async def test_a_new_authority_of_the_cluster_is_read_and_trusted() -> None:
    old, new = CertificateAuthority.create("old"), CertificateAuthority.create("new")
    trusted = [old, new]
    async with serving(always(OK), tls_of(new)) as server:

        def config() -> ClusterConfig:
            return ClusterConfig(server=server.url, ca_data=trusted.pop(0).certificate)

        asking = AgentApi(config(), user_agent="muster-agent/test", again=config)
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await asking.request("GET", "/x")
        assert await asking.request("GET", "/x") == b"{}"
        asking.close()


async def test_untrusted_authority_is_never_accepted() -> None:
    old, other = CertificateAuthority.create("old"), CertificateAuthority.create("other")
    async with serving(always(OK), tls_of(other)) as server:
        config = ClusterConfig(server=server.url, ca_data=old.certificate)
        asking = AgentApi(config, user_agent="muster-agent/test", again=lambda: config)
        for _ in range(3):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await asking.request("GET", "/x")
        asking.close()
    assert server.requests == []


class Rotated(Anonymous):
    """A token file: the first token has expired."""

    def __init__(self) -> None:
        self.token = "old"

    async def authorization(self) -> str:
        return f"Bearer {self.token}"

    def invalidate(self, rejected: str) -> bool:
        self.token = "new"
        return rejected.endswith("old")


async def test_a_token_that_expired_is_read_again_once() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK if b"Bearer new" in request else status(401, "Unauthorized"))
        return True

    async with serving(answer) as server:
        asking = api(server, Rotated())
        assert await asking.request("GET", "/x") == b"{}"
        asking.close()
    async with serving(always(status(401, "Unauthorized"))) as server:
        asking = api(server, Rotated())
        with pytest.raises(Unauthorized):
            await asking.request("GET", "/x")
        asking.close()
    assert len(server.requests) == 2
