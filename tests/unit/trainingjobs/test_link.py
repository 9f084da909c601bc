"""Links of supervisors, real and simulated, to the real server over TLS: two connections, and never silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from muster.api.names import ANNOTATION_GANG_UID, LABEL_GANG
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.sim.longpoll import Link
from muster.sim.poller import Poller
from muster.trainingjobs.plan import Directive
from muster.trainingjobs.rendezvous import members as members_module
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.server import RendezvousServer, serve_tls
from muster.trainingjobs.rendezvous.tokens import PodIdentity
from tests.support.loopback import loopback_subnet
from tests.support.waiting import until

JOB, KEY, POD = "job-uid", "ns/job", "pod-uid"
AUTHORITY = CertificateAuthority.create()
REAL = """
import json, ssl, sys, types, urllib.parse
from muster.trainingjobs.supervisor.controller.link import ControllerLink
url, ca, token = sys.argv[1:]
settings = types.SimpleNamespace(
    url=urllib.parse.urlsplit(url), tls=ssl.create_default_context(cafile=ca), token_file=token)
about = {}
link = ControllerLink(settings, lambda directive: print(json.dumps(directive), flush=True), lambda: about)
for line in sys.stdin:
    about.update(cacheAddress="127.0.0.1:9447", cacheExpires=1)
    link.report(json.loads(line))
    link.start() if link._said == 1 else None
"""

Say = Callable[[str, int], Awaitable[None]]


class Server:
    """The real server and members; pods and tokens are made up."""

    serving = True

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.members = Members(b"secret", lambda key: None)
        self.members.direct(JOB, KEY, Directive(attempt=1, desired="hold", slots=(POD,)))
        self.resumed: dict[tuple[str, int], bool] = {}
        self.transports: dict[asyncio.Transport, None] = {}
        self.leads: Callable[[asyncio.Transport], bool] = lambda _: True
        """Whether a connection reaches the leader; else it reaches another replica behind the same Service."""
        self.refused = 0
        self.port, self.host = port, host

    def pod(self, key: str) -> Pod:
        metadata = ObjectMeta(
            name="pod", namespace="ns", uid=POD, labels={LABEL_GANG: "job"}, annotations={ANNOTATION_GANG_UID: JOB}
        )
        return Pod(metadata=metadata)

    async def identify(self, token: str) -> PodIdentity:
        return PodIdentity("ns", "pod", POD)

    async def is_gone(self, job_key: str, job_uid: str) -> bool:
        return False

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            assert request.transport is not None
            tls = request.transport.get_extra_info("ssl_object")
            self.resumed[request.transport.get_extra_info("peername")] = tls.session_reused
            self.transports[request.transport] = None
            answer = await handler(request) if self.leads(request.transport) else None
            if answer is not None and self.leads(request.transport):
                return answer
            self.refused += 1
            return web.json_response({"message": "another replica leads"}, status=503, headers={"Retry-After": "0"})

        app = RendezvousServer(self, self.members, self).app()  # type: ignore[arg-type]
        app.middlewares.append(note)
        pair = AUTHORITY.issue_server("s", [self.host])
        async with serve_tls(app, pair, self.host, self.port) as self.port:
            yield

    @property
    def member(self) -> Any:
        return self.members.of(JOB).get(POD)

    @property
    def hears(self) -> bool:
        """Whether a poll is open."""
        return self.member is not None and self.member.silent_since is None


@pytest.fixture
async def up() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch, up: contextlib.AsyncExitStack) -> Server:
    monkeypatch.setattr(members_module, "POLL_S_MIN", 1.0)
    server = Server(host=f"{loopback_subnet()}.1")  # of its own: one test listens on its port again
    await up.enter_async_context(server.listening())
    return server


class Side:
    """A link under test: what it is to say, and which directives it got."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self.got: list[dict[str, Any]] = []

    def say(self, state: str, attempt: int = 1) -> None:
        self._say({"state": state, "attempt": attempt, "shellPort": 1, "address": "127.0.0.1"})


@pytest.fixture(params=["real", "simulated"])
async def side(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> AsyncIterator[Side]:
    url, ca, token = f"https://{server.host}:{server.port}", tmp_path / "ca", tmp_path / "token"
    ca.write_bytes(AUTHORITY.certificate)
    token.write_text("t")
    if request.param == "real":
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", REAL, url, str(ca), str(token), stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        side = Side(lambda body: stdin.write(json.dumps(body).encode() + b"\n"))

        async def read() -> None:
            async for line in stdout:
                side.got.append(json.loads(line))

        reading = asyncio.create_task(read())
        yield side
        stdin.close()
        process.kill()
        await process.wait()
        await reading
        return
    tls, said = ssl.create_default_context(cafile=ca), {}

    def say(body: dict[str, Any]) -> None:
        said.update(body)
        poller.send()

    side = Side(say)
    links = (Link(url, tls), Link(url, tls))
    poller = Poller(links, "t", body=lambda: said, on_directive=side.got.append, rng=random.Random(1))
    said.update(state="idle", attempt=1, shellPort=1, address="127.0.0.1")
    polling = asyncio.create_task(poller.run())
    yield side
    polling.cancel()
    poller.close()
    await asyncio.wait([polling])


@pytest.mark.slow
async def test_news_and_polls_need_two_connections_and_leave_no_gap(server: Server, side: Side) -> None:
    side.say("idle")
    await until("a poll waits", lambda: server.hears)
    silences = 0
    for number in range(2, 32):
        side.say("running" if number % 2 else "idle", number)
        await until("the news is there", lambda number=number: server.member.attempt == number)  # type: ignore[misc]
        silences += not server.hears
    deadline = time.monotonic() + 4.0  # several polls without news
    while time.monotonic() < deadline:
        silences += not server.hears
        await asyncio.sleep(0.001)
    assert silences == 0
    assert len(server.resumed) == 2


async def test_directives_arrive_at_once_and_in_order(server: Server, side: Side) -> None:
    side.say("idle")
    for attempt in range(2, 12):
        side.say("running", attempt)  # news and directives cross
        server.members.direct(JOB, KEY, Directive(attempt=attempt, desired="hold", slots=(POD,)))
        await until("directed", lambda attempt=attempt: side.got and side.got[-1]["attempt"] == attempt)  # type: ignore[misc]
    assert [each["attempt"] for each in side.got] == sorted(each["attempt"] for each in side.got)
    assert len(server.resumed) == 2


@pytest.mark.slow
async def test_a_controller_that_went_away_is_found_again(
    server: Server, side: Side, up: contextlib.AsyncExitStack
) -> None:
    side.say("idle")
    await until("a poll waits", lambda: server.hears)
    await up.aclose()
    back = Server(server.port, server.host)
    async with back.listening():
        await until("it is back", lambda: back.hears)
        side.say("finished")
        await until("and says what is new", lambda: back.member.state == "finished")


@pytest.fixture
def standbys(server: Server) -> None:
    """Every connection but the first reaches a replica that does not lead."""
    server.leads = lambda transport: transport is next(iter(server.transports))


@pytest.fixture
async def one_connection(server: Server, standbys: None, side: Side) -> asyncio.Transport:
    """The only connection to the leader; others were refused."""
    side.say("idle")
    await until("a poll waits", lambda: server.hears)
    await until("a replica that does not lead has refused", lambda: server.refused > 1)
    return next(iter(server.transports))


async def test_a_directive_arrives_while_new_connections_reach_a_replica_that_does_not_lead(
    server: Server, one_connection: asyncio.Transport, side: Side
) -> None:
    for attempt in range(2, 5):
        server.members.direct(JOB, KEY, Directive(attempt=attempt, desired="hold", slots=(POD,)))
        await until("directed", lambda attempt=attempt: side.got and side.got[-1]["attempt"] == attempt)  # type: ignore[misc]
    assert [each["attempt"] for each in side.got] == sorted(each["attempt"] for each in side.got)


@pytest.mark.slow
async def test_news_take_the_connection_to_the_leader(
    server: Server, one_connection: asyncio.Transport, side: Side
) -> None:
    for number in range(2, 5):
        side.say("running", number)
        server.members.direct(JOB, KEY, Directive(attempt=number, desired="hold", slots=(POD,)))
        await until("the news is there", lambda number=number: server.member.attempt == number)  # type: ignore[misc]
    assert not one_connection.is_closing()


@pytest.mark.slow
async def test_another_replica_that_leads_is_found(
    server: Server, one_connection: asyncio.Transport, side: Side
) -> None:
    server.leads = lambda transport: transport is not one_connection
    server.members.clear()
    await until("a poll waits", lambda: server.hears)
    side.say("finished")
    await until("the news is there", lambda: server.member.state == "finished")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["real"], indirect=True)
async def test_every_connection_but_the_first_resumes_the_tls_session(server: Server, side: Side) -> None:
    side.say("idle")
    await until("both connections", lambda: len(server.resumed) == 2 and server.hears)
    assert sorted(server.resumed.values()) == [False, True]
    before = set(server.resumed)
    for transport in server.transports:
        transport.abort()
    await until("another connection", lambda: set(server.resumed) - before)
    assert all(server.resumed[each] for each in set(server.resumed) - before)


@pytest.mark.parametrize("side", ["real"], indirect=True)
async def test_address_of_the_node_cache_is_in_each_request(server: Server, side: Side) -> None:
    side.say("idle")
    await until("a poll waits", lambda: server.hears)
    assert (server.member.cache_address, server.member.cache_expires) == ("127.0.0.1:9447", 1)
