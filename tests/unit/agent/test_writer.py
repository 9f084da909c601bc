"""The writer of the record before API servers that are none: it keeps trying, and never takes one for the other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.agent.api import AgentApi
from muster.agent.check import Host
from muster.agent.identity import facts
from muster.agent.pace import Pace
from muster.agent.writer import Writer
from muster.fleet.health.finding import Finding
from muster.kube.connection.config import ClusterConfig
from muster.kube.progress import Progress
from tests.support.waiting import until
from tests.unit.agent.answers import Answer, Server, serving

NODE, UID = "node-1", "0f8fad5b-d9cb-469f-a165-70867728950e"
NOW_S = time.time()
XID = Finding(check="xid", component="0000:3b:00.0", code="79", first_s=NOW_S, last_s=NOW_S)


def answered(body: bytes, code: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (code, len(body)) + body


def node_or_record(request: bytes) -> bytes:
    """What an API server says: the node, and the record as it was written."""
    if request.startswith(b"GET") and b"/nodes/" in request:
        return answered(json.dumps({"metadata": {"name": NODE, "uid": UID}}).encode())
    if request.startswith(b"GET"):
        return answered(b'{"reason":"NotFound","code":404}', 404)
    [patch] = json.loads(request.partition(b"\r\n\r\n")[2])
    return answered(json.dumps({"metadata": {"name": NODE}, "spec": {}, "status": patch["value"]}).encode())


@asynccontextmanager
async def writing(answer: Answer, root: Path) -> AsyncIterator[tuple[Server, Writer]]:
    async with serving(answer) as server:
        api = AgentApi(ClusterConfig(server=server.url), user_agent="muster-agent/test", timeout_s=30.0)
        now_s = asyncio.get_running_loop().time()
        pace = Pace(NODE, period_s=0.05, heartbeat_s=300.0, now_s=now_s)
        writer = Writer(api, NODE, pace, Host(proc=root / "proc"), ("1", ""), Progress())
        task = asyncio.create_task(writer.run())
        try:
            yield server, writer
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])
            api.close()


def statuses(requests: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each.partition(b"\r\n\r\n")[2])[0]["value"] for each in requests if each.startswith(b"PATCH")]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"<html>Please sign in</html>",
        b"",
        b"{}",
        b'{"metadata":{"name":"another"}}',
        b'{"metadata":[]}',
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"PATCH"])
async def test_answer_of_another_server_is_not_accepted(nonsense: bytes, method: bytes, tmp_path: Path) -> None:
    """It ends nothing, and nothing counts as written; once the right one answers everything is."""
    lies = True

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answered(nonsense) if lies and request.startswith(method) else node_or_record(request))
        return True

    async with writing(answer, tmp_path) as (server, writer):
        writer.take([XID])
        await until("it got two unreadable answers", lambda: writer.writes["Unreadable"] > 1)
        assert writer.writes["ok"] == 0
        assert writer.failing_s > 0
        lies = False
        await until("it is written", lambda: writer.writes["ok"])
        assert writer.failing_s == 0
        assert [each["code"] for each in statuses(server.requests)[-1]["findings"]] == ["79"]


async def test_a_record_that_cannot_be_read_never_keeps_a_node_from_being_heard(tmp_path: Path) -> None:
    """Another version may have written something that this one does not understand."""
    status = {"nodeUID": UID, "findings": [{"check": 5}], "dropped": "many"}
    record = json.dumps({"metadata": {"name": NODE}, "status": status}).encode()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answered(record) if b"GET /base/apis/" in request else node_or_record(request))
        return True

    async with writing(answer, tmp_path) as (server, writer):
        writer.take([XID])
        await until("it is written", lambda: writer.writes["ok"])
        assert [each["code"] for each in statuses(server.requests)[-1]["findings"]] == ["79"]


async def test_a_driver_that_does_not_answer_never_keeps_the_record_from_being_of_this_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-7\n")
    stuck = asyncio.Event()
    loop = asyncio.get_running_loop()

    def never(host: Host) -> object:
        asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result()
        return facts(host)

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(node_or_record(request))
        return True

    monkeypatch.setattr("muster.agent.writer.facts", never)
    monkeypatch.setattr("muster.agent.writer._FACTS_TIMEOUT_S", 0.1)
    async with writing(answer, tmp_path) as (server, writer):
        await until("it is written", lambda: writer.writes["ok"])
        assert statuses(server.requests)[0]["bootID"] == "boot-7"
        stuck.set()
