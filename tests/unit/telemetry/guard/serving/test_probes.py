"""Probes: whose headers they carry, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.pricing.pricer import ProbeFailed
from muster.telemetry.guard.serving import probes
from muster.telemetry.guard.serving.destination import Destination
from muster.telemetry.guard.serving.probes import ProbeClient
from tests.support.rawserver import Arrived, Script, Upstream
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.telemetry.guard.serving.guarded import ANSWER, answer

PATH = "/api/v1/status/tsdb"


def caller(name: str, *headers: tuple[str, str]) -> Caller:
    return Caller(name, "token", "default", name, "", headers, name.encode())


@asynccontextmanager
async def probing(script: Script) -> AsyncIterator[tuple[ProbeClient, Upstream]]:
    upstream = Upstream(script)
    await upstream.start()
    client = ProbeClient(Destination(f"http://127.0.0.1:{upstream.port}/prefix"), TIMEOUT_S)
    try:
        yield client, upstream
    finally:
        await client.close()
        await upstream.close()


async def test_probe_has_the_tenant_and_credentials_of_its_caller() -> None:
    async with probing(answer) as (client, upstream):
        red = client.key(caller("red", ("X-Scope-OrgID", "red"), ("Authorization", "Bearer r")))
        none = client.key(caller("none"))
        assert await client.get(PATH, [("limit", "1")], red, TIMEOUT_S, 100) == ANSWER
        assert await client.get(PATH, [], none, TIMEOUT_S, 100) == ANSWER
        (first_line, first), (_, second) = upstream.heads
        assert first_line == f"GET /prefix{PATH}?limit=1 HTTP/1.1"
        assert (first["x-scope-orgid"], first["authorization"]) == ("red", "Bearer r")
        assert not {"x-scope-orgid", "authorization"} & set(second)
        assert "Bearer" not in red


async def _hang(_: Upstream, arrived: Arrived) -> None:
    await arrived.reader.read()


async def _error(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(b"HTTP/1.1 500 E\r\nContent-Length: 0\r\n\r\n")


async def _redirect(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")


async def _endless(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await arrived.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")


async def _break(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    raise ConnectionError


@pytest.mark.parametrize(
    ("script", "timeout_s", "why"),
    [
        (_hang, 0.1, "did not answer"),
        (_error, TIMEOUT_S, "with 500"),
        (_redirect, TIMEOUT_S, "with 302"),
        (_endless, TIMEOUT_S, "more than 5000 bytes"),
        (_break, TIMEOUT_S, "closed the connection"),
    ],
)
async def test_probe_that_fails_says_why(
    script: Script, timeout_s: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_WORKLESS_S", 0.1)
    async with probing(script) as (client, upstream):
        with pytest.raises(ProbeFailed, match=why):
            await client.get(PATH, [], "", timeout_s, 5000)
        asked = [PATH in line for line, _ in upstream.heads].count(True)
        assert asked == 1 or (asked == 0 and script is _hang)  # its deadline may come before its request


@pytest.mark.parametrize("path", [PATH, "/api/v1/query"])
async def test_prometheus_that_accepts_and_never_answers_is_away_until_it_answers(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_WORKLESS_S", 0.1)
    hangs = True

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await (_hang if hangs else answer)(upstream, arrived)

    async with probing(script) as (client, _):
        with pytest.raises(ProbeFailed, match="did not answer"):
            await client.get(path, [], "", 0.1, 5000)
        assert client.presence.failure is not None
        assert client.presence.failure.outcome == "unreachable"
        hangs = False
        monkeypatch.setattr(probes, "_WORKLESS_S", TIMEOUT_S)
        await client.get(path, [], "", TIMEOUT_S, 5000)
        assert client.presence.failure is None


async def test_prometheus_that_is_busy_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers what needs no work."""
    monkeypatch.setattr(probes, "_WORKLESS_S", TIMEOUT_S)

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await (answer if "buildinfo" in arrived.line else _hang)(upstream, arrived)

    async with probing(script) as (client, upstream):
        for _ in range(2):
            with pytest.raises(ProbeFailed, match="did not answer"):
                await client.get(PATH, [], "", 0.1, 5000)
        assert client.presence.failure is None
        assert ["buildinfo" in line for line, _ in upstream.heads].count(True) == 2  # the others may not have arrived


async def test_prometheus_is_not_away_while_slow_probes_use_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "_CONNECTIONS", 2)
    monkeypatch.setattr(probes, "_WORKLESS_S", TIMEOUT_S)

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await (answer if "buildinfo" in arrived.line else _hang)(upstream, arrived)

    async with probing(script) as (client, upstream), asyncio.TaskGroup() as group:
        slow = [group.create_task(client.get("/slow", [], "", 60.0, 5000)) for _ in range(2)]
        await until("they use all connections", lambda: len(upstream.heads) == 2)
        with pytest.raises(ProbeFailed, match="did not answer"):
            await client.get(PATH, [], "", 0.1, 5000)
        assert client.presence.failure is None
        assert not [line for line, _ in upstream.heads if PATH in line]
        for task in slow:
            task.cancel()
