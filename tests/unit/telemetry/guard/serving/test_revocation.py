"""Requests whose caller is identified again while they are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from muster.telemetry.guard.callers.caller import Caller, NotIdentified, Peer
from muster.telemetry.guard.callers.peers import Headers
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.revocation import Revocation, Underway
from muster.telemetry.guard.serving.settings import ServingSettings
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.telemetry.guard.serving.guarded import Guarded, guarded

CALLER = Caller("one", "token", "default", "one")
REMOVED = Failure("unauthenticated", 401, "unknown", reason="bad_credentials")


class Identify:
    """Fails to identify a caller, and counts how often it was asked."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.asked = 0

    async def __call__(self, request: web.BaseRequest) -> Caller:
        self.asked += 1
        raise self.failure


@asynccontextmanager
async def rechecking(failure: Failure) -> AsyncIterator[tuple[Revocation, Identify]]:
    identify = Identify(failure)
    revocation = Revocation(identify, 0.01)
    running = asyncio.create_task(revocation.run())
    try:
        yield revocation, identify
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_request_that_swallows_its_end_is_ended_again() -> None:
    async with rechecking(REMOVED) as (revocation, identify):

        async def serve() -> None:
            underway = revocation.begin(make_mocked_request("GET", "/"), CALLER)
            try:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                await asyncio.Event().wait()
            finally:
                revocation.end(underway)

        serving = asyncio.create_task(serve())
        await until("it has ended", serving.done)
        assert serving.cancelled()
        assert identify.asked == 1


@pytest.mark.parametrize("others", [0, 1])
async def test_revoked_request_knows_whether_its_task_was_cancelled_otherwise_too(others: int) -> None:
    async with rechecking(REMOVED) as (revocation, _):
        found: list[Underway] = []

        async def serve() -> tuple[bool, int]:
            found.append(revocation.begin(make_mocked_request("GET", "/"), CALLER))
            while found[0].cancels < 2:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            revocation.end(found[0])
            return found[0].cancelled_otherwise(), found[0].task.cancelling()

        serving = asyncio.create_task(serve())
        await until("it is served", lambda: found)
        for _ in range(others):
            serving.cancel()
        assert await serving == (bool(others), others)


@pytest.mark.parametrize(("status", "reason"), [(503, "no_review"), (429, "too_many_bad_tokens")])
async def test_request_continues_while_its_token_cannot_be_reviewed(status: int, reason: str) -> None:
    not_reviewed = Failure("forbidden", status, "not reviewed", reason=reason)
    async with rechecking(not_reviewed) as (revocation, identify):
        found: list[Underway] = []

        async def serve() -> None:
            found.append(revocation.begin(make_mocked_request("GET", "/"), CALLER))
            try:
                await asyncio.Event().wait()
            finally:
                revocation.end(found[0])

        serving = asyncio.create_task(serve())
        await until("it was identified again", lambda: identify.asked >= 2 or serving.done())
        assert not serving.done()
        identify.failure = REMOVED
        await until("it has ended", serving.done)
        assert found[0].revoked is REMOVED


async def identified(peer: Peer, headers: Headers) -> Caller:
    return CALLER


NO_REVIEW = NotIdentified(503, "no_review", "the API server does not answer")
BAD = NotIdentified(401, "bad_credentials", "unknown")


class Again:
    """Fails to identify the callers of requests that a guard serves already."""

    def __init__(self) -> None:
        self.error = NO_REVIEW
        self.asked = 0

    async def __call__(self, peer: Peer, headers: Headers) -> Caller:
        self.asked += 1
        raise self.error


@asynccontextmanager
async def guarded_and_rechecking() -> AsyncIterator[Guarded]:
    """A guard that identifies callers again, and whose Prometheus does not answer."""

    async def silent(_: Upstream, arrived: Arrived) -> None:
        await arrived.reader.read()

    async with guarded(silent, settings=ServingSettings(recheck_s=0.01, stop_s=1.0)) as guard:
        running = asyncio.create_task(guard.handler.revocation.run())
        try:
            yield guard
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_only_the_end_of_a_request_counts_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded_and_rechecking() as guard:
        asking = asyncio.create_task(guard.get())
        await until("the request is sent", lambda: guard.upstream.heads)
        again = Again()
        monkeypatch.setattr(guard.callers, "identify_again", again)
        await until("its caller was identified again", lambda: again.asked >= 3)
        assert guard.callers.refused == {}
        again.error = BAD
        assert (await asking).status == 401
        assert guard.callers.refused == {"bad_credentials": 1}


async def test_connection_of_a_revoked_request_ends_if_its_body_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded_and_rechecking() as guard:
        again = Again()
        monkeypatch.setattr(guard.callers, "identify_again", again)
        monkeypatch.setattr(guard.callers, "identify", identified)
        client = await guard.connect()
        form = "Content-Type: application/x-www-form-urlencoded"
        await client.send(f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{form}\r\nContent-Length: 1000\r\n\r\nquery")
        await until("its body is read", lambda: again.asked)
        again.error = BAD
        reply = await client.reply()
        assert (reply.status, reply.headers.get("connection")) == (401, "close")
        assert await client.ended() == b""
        assert guard.upstream.heads == []
