"""`muster network uplink` against the page of a leader."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from muster.kube.health import serve
from muster.network.uplink.page import SubjectRow, TeamRow, UplinkPage
from muster.network.uplink.wire import NOTHING, Pair

G, M = 10**9, 10**6


def row(subject: str, **more: object) -> SubjectRow:
    said: dict[str, object] = {
        "node": "n1",
        "namespace": "space",
        "pod": f"pod-{subject}",
        "job": "train",
        "team": "red",
        "priority": 5,
        "used": Pair(2 * G, 0),
        "wants": Pair(10 * G, 0),
        "rate": Pair(2 * G, 500_000),
        "waits": ("TeamShare", ""),
    }
    return SubjectRow(subject=subject, **(said | more))  # type: ignore[arg-type]


def page(*rows: SubjectRow, **more: object) -> UplinkPage:
    said: dict[str, object] = {
        "epoch": "e",
        "dry_run": False,
        "warming": False,
        "budget": Pair(100 * G, 40 * G),
        "used": Pair(2 * G, 0),
        "allotted": Pair(3 * G, 0),
        "away": NOTHING,
        "nodes": 2,
        "connected": 2,
        "silent": (),
        "teams": (TeamRow("red", 3, Pair(10 * G, 0), Pair(2 * G, 0)),),
        "subjects": rows,
    }
    return UplinkPage(**(said | more))  # type: ignore[arg-type]


@asynccontextmanager
async def leader(found: UplinkPage | None) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        if found is None:
            return web.Response(status=503, text="this replica does not allocate the uplink's budget\n")
        return web.Response(body=msgspec.json.encode(found))

    app = web.Application()
    app.router.add_get("/v1/uplink", answer)
    async with serve(app) as port:
        yield f"http://127.0.0.1:{port}"


async def run(found: UplinkPage | None, *options: str) -> subprocess.CompletedProcess[str]:
    async with leader(found) as url:
        command = [sys.executable, "-m", "muster.cli.main", "network", "uplink", "--url", url, *options]
        env = {"COLUMNS": "220", "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=env, timeout=60)


@pytest.mark.slow
async def test_table_shows_demand_rate_and_what_each_subject_waits_for() -> None:
    done = await run(page(row("a"), row("b", waits=("", "Priority"), job="", pod="")))
    assert done.returncode == 0, done.stderr
    assert "uplink: in 2 Gbit/s of 100 Gbit/s, out 0 bit/s of 40 Gbit/s; 2 of 2 nodes are connected" in done.stdout
    assert "in: share of team" in done.stdout
    assert "out: higher priority" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert next(line for line in lines if line[:1] == ["red"])[:2] == ["red", "3"]


@pytest.mark.slow
async def test_filters_and_json() -> None:
    rows = row("a"), row("b", waits=("", "")), row("c", team="blue")
    done = await run(page(*rows), "--team", "red", "--waiting", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [each["subject"] for each in json.loads(done.stdout)["subjects"]] == ["a"]


@pytest.mark.slow
async def test_flows_that_do_not_respond_are_named_and_fail_the_command() -> None:
    done = await run(page(row("a", unresponsive=Pair(300 * M, 0))))
    assert done.returncode == 1
    assert "space/pod-a on n1 uses 300 Mbit/s in beyond its limit" in done.stderr


@pytest.mark.slow
async def test_state_of_the_leader_is_said() -> None:
    said = await run(page(dry_run=True, warming=True, connected=1, silent=("n2",), away=Pair(10 * M, 20 * M)))
    assert "dry run: nothing is limited" in said.stderr
    assert "the leader is new" in said.stderr
    assert "nodes without a connection: n2; 10 Mbit/s in and 20 Mbit/s out are kept for them" in said.stderr


@pytest.mark.slow
async def test_without_a_leader_the_error_says_what_to_do() -> None:
    done = await run(None)
    assert done.returncode == 4
    assert "no controller shares the uplink's budget" in done.stderr
    assert "docs/network-uplink.md" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("url", ["10.0.0.1:9443", ""])
async def test_bad_address_is_refused(url: str) -> None:
    command = [sys.executable, "-m", "muster.cli.main", "network", "uplink", "--url", url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
