"""Issue 17 A2: the process of the guard before an upstream that misbehaves: memory, overload, fail open, stop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.embedded.kubelet.containers.atomic_folder import write_atomically
from muster.telemetry.guard.program import GuardOptions, run_guard
from muster.telemetry.guard.serving.flight import Reader
from muster.telemetry.guard.serving.flights import Flights
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import UpstreamRequest
from tests.support import guardprocess
from tests.support.guardprocess import Guard
from tests.support.rawclient import Client
from tests.support.rawserver import Arrived, Script, Upstream
from tests.support.waiting import until

TSDB = "/api/v1/status/tsdb"
QUERY = "/api/v1/query?query=up"
OPEN: dict[str, Any] = {"callers": {"anonymous": "default"}, "allowPaths": [TSDB]}
ANSWER_BYTES = 500 << 20
GUARD_BYTES = 150 << 20
PIECE = b"x" * (1 << 20)


def bytes_of(pid: int, field: str = "VmHWM") -> int:
    """Resident memory of a process: its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


@asynccontextmanager
async def answering(
    folder: Path, script: Script, files: Mapping[str, str] | None = None, **config: Any
) -> AsyncIterator[tuple[Upstream, Path]]:
    """Run an upstream that answers as its script says, and write the configuration of a guard before it.

    `files` has the files of `upstream`.
    """
    upstream = Upstream(script)
    await upstream.start()
    path = folder / "guard.yaml"
    address = {"url": f"http://127.0.0.1:{upstream.port}", **(files or {})}
    path.write_text(json.dumps({"upstream": address, **OPEN, **config}))
    try:
        yield upstream, path
    finally:
        await upstream.close()


@asynccontextmanager
async def guarded(
    folder: Path,
    script: Script,
    settings: ServingSettings | None = None,
    registry: CollectorRegistry | None = None,
    **config: Any,
) -> AsyncIterator[tuple[int, Upstream]]:
    """Run a guard in this process, with its metrics in `registry`. Yields its port."""
    async with answering(folder, script, **config) as (upstream, path):
        stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
        options = GuardOptions(config=path)
        running = run_guard(
            options,
            stop,
            on_ready=lambda _, found: port.set_result(found),
            registry=registry or CollectorRegistry(),
            settings=settings,
        )
        task = asyncio.create_task(running)
        await asyncio.wait((task, port), return_when=asyncio.FIRST_COMPLETED)
        yield await port, upstream
        stop.set()
        await task


@asynccontextmanager
async def process(
    folder: Path, script: Script, files: Mapping[str, str] | None = None, **config: Any
) -> AsyncIterator[tuple[Guard, Upstream]]:
    """Run a guard as a process."""
    async with answering(folder, script, files, **config) as (upstream, path):
        running = guardprocess.running(path, folder / "guard.log")
        guard = await asyncio.to_thread(running.__enter__)
        try:
            yield guard, upstream
        finally:
            running.__exit__(None, None, None)


async def connect(port: int) -> Client:
    """Connect a client."""
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def get(port: int, path: str) -> tuple[int, Any]:
    """Send a request on a connection of its own. Returns the status and the answer's JSON."""
    client = await connect(port)
    reply = await client.get(path)
    await client.close()
    return reply.status, json.loads(reply.body)


async def _answer(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"status":"success"}')


async def test_answer_of_500_mb_passes_in_bounded_memory(tmp_path: Path) -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % ANSWER_BYTES)
        for _piece in range(ANSWER_BYTES // len(PIECE)):
            await arrived.send(PIECE)

    limits = {"default": {"limits": {"maxAnswerBytes": ANSWER_BYTES}}}
    async with process(tmp_path, script, groups=limits) as (guard, _):
        client = await connect(guard.port)
        await client.send(f"GET {TSDB} HTTP/1.1\r\nHost: g\r\n\r\n")
        head = await client.head()
        assert int(head.headers["content-length"]) == ANSWER_BYTES
        missing = ANSWER_BYTES
        while missing:
            piece = await client.reader.read(1 << 20)
            assert piece
            missing -= len(piece)
        await client.close()
        assert bytes_of(guard.child.pid) < GUARD_BYTES


@pytest.mark.parametrize("mode", ["refuse", "allow"])
async def test_guard_without_prometheus_says_so_and_not_that_the_query_is_dear(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with guarded(tmp_path, _answer, whenUnknown=mode) as (port, upstream):
        await upstream.close()
        for _ in range(3):
            found, body = await get(port, QUERY)
            assert (found, body["guard"]["reason"]) == (502, "unreachable")
            assert "cannot be reached" in body["error"]
        assert (await get(port, TSDB))[0] == 502
        assert caplog.text.count("cannot be reached, so requests get 502") == 1
        await upstream.start()
        assert (await get(port, TSDB))[0] == 200
        assert "answers again" in caplog.text


async def test_request_without_a_price_is_sent_if_the_guard_fails_open(tmp_path: Path) -> None:
    async def script(upstream: Upstream, arrived: Arrived) -> None:
        if "query=up" in arrived.line:
            await _answer(upstream, arrived)
        else:  # probes
            await arrived.send(b"HTTP/1.1 500 E\r\nContent-Length: 0\r\n\r\n")

    (tmp_path / "closed").mkdir()
    async with guarded(tmp_path / "closed", script) as (port, upstream):
        status, body = await get(port, QUERY)
        assert (status, body["guard"]["reason"]) == (503, "unknown_price")
        assert not [line for line, _ in upstream.heads if "query=up" in line.partition("?")[2].split("&")]
    (tmp_path / "open").mkdir()
    async with guarded(tmp_path / "open", script, whenUnknown="allow") as (port, _):
        assert (await get(port, QUERY))[0] == 200


@pytest.mark.parametrize(("mode", "status"), [("refuse", 429), ("allow", 200)])
async def test_overloaded_guard_fails_closed_or_open_as_configured(tmp_path: Path, mode: str, status: int) -> None:
    go = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        if "held" in arrived.line:
            await go.wait()
        await _answer(upstream, arrived)

    config = {"inAll": {"concurrentCost": 1.0}, "queue": {"waitSeconds": 0}, "whenOverloaded": mode}
    async with guarded(tmp_path, script, **config) as (port, upstream):
        first = asyncio.create_task(get(port, f"{TSDB}?held=1"))
        await until("the first runs", lambda: bool(upstream.heads))
        found, body = await get(port, TSDB)
        assert found == status
        if status == 429:
            assert body["guard"] == {
                "reason": "over_budget", "whose": "all", "which": "concurrentCost", "cost": 1.0, "limit": 1.0,
                "used": 1.0,
            }  # fmt: skip
        go.set()
        assert (await first)[0] == 200
        assert (await get(port, TSDB))[0] == 200


async def test_sigterm_lets_requests_end_and_the_process_exits(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await go.wait()
        await _answer(upstream, arrived)

    async with process(tmp_path, script) as (guard, upstream):
        running = asyncio.create_task(get(guard.port, TSDB))
        await until("it is sent", lambda: bool(upstream.heads))
        os.kill(guard.child.pid, signal.SIGTERM)
        await until("new clients are refused", lambda: _refused(guard))
        assert guard.child.exit_code is None
        go.set()
        assert await running == (200, {"status": "success"})
        await until("the process ends", lambda: guard.child.exit_code == 0)
        assert "Traceback" not in guard.child.log_tail()


async def _refused(guard: Guard) -> bool:
    try:
        client = await connect(guard.port)
    except ConnectionError:
        return True
    await client.close()
    return False


async def test_refusals_say_what_helps_and_what_was_priced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(tmp_path, _answer, groups={"default": {"limits": {"maxSteps": 1}}}) as (port, _):
        for path in ("/api/v1/admin/tsdb/snapshot", "/-/reload", "/"):
            status, body = await get(port, path)
            assert (status, body["guard"]["reason"]) == (403, "denied_path")
            assert "allowPaths" not in body["error"]
            assert "encoding" not in body["error"]
        assert "allowPaths" in (await get(port, "/api/v1/notifications"))[1]["error"]
        client = await connect(port)
        reply = await client.get("/api/v1/query_range?query=vector(1)&start=0&end=3600&step=1")
        await client.close()
        assert reply.status == 422
        assert reply.headers["x-guard-cost"]
    assert "callers is empty" not in caplog.text


async def test_guard_without_callers_says_so_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(tmp_path, _answer, callers={}) as (port, _):
        assert (await get(port, QUERY))[1]["guard"]["reason"] == "no_credentials"
    assert "callers is empty" in caplog.text


async def test_dry_run_sends_what_was_asked_and_refuses_nothing_for_its_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    too_long = "/api/v1/query_range?query=vector(1)&start=0&end=4000000000&step=1"
    unknown_syntax = "/api/v1/query?query=up%20smoothed%20by%20magic"
    groups = {"default": {"limits": {"maxRangeSeconds": 60, "maxAnswerBytes": 1}, "eachCaller": {"concurrentCost": 1}}}
    async with guarded(tmp_path, _answer, dryRun=True, groups=groups) as (port, upstream):
        for path in (too_long, unknown_syntax):
            assert await get(port, path) == (200, {"status": "success"})
        cheap = "/api/v1/query_range?query=cheap&start=0&end=120&step=60"  # below dearest.logCost
        assert (await get(port, cheap))[0] == 200
        lines = [line for line in caplog.text.splitlines() if '"query": "cheap"' in line]
        assert ['"exceeds": ' in line for line in lines] == [True]
        assert (await get(port, "/api/v1/admin/tsdb/snapshot"))[0] == 403
        sent = [line.split()[1] for line, _ in upstream.heads]
        assert [path for path in sent if "vector" in path] == [too_long.replace("(", "%28").replace(")", "%29")]
        assert [path for path in sent if "smoothed" in path] == [unknown_syntax.replace("%20", "+")]


def tokens(*names: str) -> dict[str, Any]:
    """Callers whose tokens are their names."""
    return {"tokens": [{"name": each, "sha256": hashlib.sha256(each.encode()).hexdigest()} for each in names]}


def remove(folder: Path, name: str) -> None:
    """Remove a caller from the configuration."""
    path = folder / "guard.yaml"
    config = json.loads(path.read_text())
    config["callers"]["tokens"] = [each for each in config["callers"]["tokens"] if each["name"] != name]
    path.write_text(json.dumps(config))


def asking(name: str, path: str) -> str:
    """A request of a caller."""
    return f"GET {path} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {name}\r\n\r\n"


async def test_running_guard_sends_the_token_that_the_kubelet_has_put_there(tmp_path: Path) -> None:
    """A bound token of a service account is replaced within its hour."""
    token = tmp_path / "secret" / "token"
    write_atomically(token.parent, {"token": (b"first-token\n", 0o600)})

    async def script(_: Upstream, arrived: Arrived) -> None:
        status = "200 OK" if arrived.headers.get("authorization") == f"Bearer {good}" else "401 No"
        await arrived.send(f'HTTP/1.1 {status}\r\nContent-Length: 20\r\n\r\n{{"status":"success"}}')

    async def answered() -> bool:
        return (await asyncio.to_thread(guard.get, TSDB))[0] == 200

    async def shown(metric: str) -> bool:
        return f"muster_guard_upstream_files_{metric}" in await asyncio.to_thread(guard.metrics)

    good = "first-token"
    async with process(tmp_path, script, {"tokenFile": str(token)}) as (guard, _):
        assert await answered()
        good = "second-token"
        status, body = await asyncio.to_thread(guard.get, TSDB)
        assert (status, "upstream.tokenFile" in body["error"]) == (502, True)
        write_atomically(token.parent, {"token": (b"second-token\n", 0o600)})
        await until("the new token is sent", answered)
        assert await shown('reloads_total{files="token"} 1.0')
        write_atomically(token.parent, {"token": (b"", 0o600)})
        await until("the empty file is found", partial(shown, 'problem{files="token"} 1.0'))
        assert await answered()
    log = (tmp_path / "guard.log").read_text()
    assert "loaded the token" in log
    assert "stays in use" in log
    assert "first-token" not in log
    assert "second-token" not in log


async def test_removed_caller_loses_an_answer_that_it_shares_and_the_others_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, go = asyncio.Event(), asyncio.Event()
    join = Flights.join

    def noted(flights: Flights, request: UpstreamRequest) -> Reader | None:
        reader = join(flights, request)
        if reader is not None:
            joined.set()
        return reader

    monkeypatch.setattr(Flights, "join", noted)

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        if "vector" not in arrived.line:
            await _answer(upstream, arrived)
            return
        await joined.wait()
        await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 * len(PIECE)))
        await arrived.send(PIECE[:100_000])
        await go.wait()
        await arrived.send(PIECE[100_000:])
        await arrived.send(PIECE)

    settings = ServingSettings(recheck_s=0.05)
    async with guarded(tmp_path, script, settings, callers=tokens("alice", "bob")) as (port, upstream):
        alice, bob = await connect(port), await connect(port)
        for name, client in (("alice", alice), ("bob", bob)):
            await client.send(asking(name, "/api/v1/query?query=vector(1)"))
        for client in (alice, bob):
            assert (await client.head()).status == 200
        assert sum("vector" in line for line, _ in upstream.heads) == 1
        remove(tmp_path, "alice")
        assert len(await alice.ended()) <= 100_000
        go.set()
        assert len(await bob.reader.readexactly(2 * len(PIECE))) == 2 * len(PIECE)
        await alice.close()
        await bob.close()


async def test_removed_caller_that_waits_for_a_budget_gets_401_and_is_not_sent(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await go.wait()
        await _answer(upstream, arrived)

    config = {"callers": tokens("alice", "bob"), "inAll": {"concurrentCost": 1.0}, "queue": {"waitSeconds": 60}}
    settings, registry = ServingSettings(recheck_s=0.05), CollectorRegistry()
    async with guarded(tmp_path, script, settings, registry, **config) as (port, upstream):
        alice, bob = await connect(port), await connect(port)
        await bob.send(asking("bob", f"{TSDB}?of=bob"))
        await until("the first request runs", lambda: bool(upstream.heads))
        await alice.send(asking("alice", f"{TSDB}?of=alice"))
        await until("the second request waits", lambda: registry.get_sample_value("muster_guard_waiting_requests") == 1)
        remove(tmp_path, "alice")
        reply = await alice.reply()
        assert (reply.status, json.loads(reply.body)["guard"]["reason"]) == (401, "bad_credentials")
        go.set()
        assert (await bob.reply()).status == 200
        await bob.send(asking("bob", f"{TSDB}?of=bob"))
        assert (await bob.reply()).status == 200
        assert not [line for line, _ in upstream.heads if "alice" in line]
        await alice.close()
        await bob.close()
