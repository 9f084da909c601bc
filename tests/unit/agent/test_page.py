"""/healthz and /metrics, and whatever else is sent to that port."""

from __future__ import annotations

import asyncio

import pytest

from muster.agent.page import serve
from muster.kube.progress import Progress


async def ask(port: int, sent: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]) if answer else 0, answer.partition("\r\n\r\n")[2]


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: node\r\nAccept: */*\r\n\r\n".encode()


async def test_a_loop_that_stands_still_is_named() -> None:
    now_s = 0.0
    progress = Progress(clock=lambda: now_s)
    progress.expect("check/disk", 30)
    async with serve(progress, dict, "127.0.0.1", 0) as port:
        assert await ask(port, get("/healthz")) == (200, "ok\n")
        now_s = 31.0
        assert await ask(port, get("/healthz")) == (500, "check/disk: no progress for 31 s\n")
        lines = (
            'muster_progress_age_seconds{loop="check/disk"} 31\n'
            'muster_progress_deadline_seconds{loop="check/disk"} 30\n'
        )
        assert await ask(port, get("/metrics")) == (200, lines)
        progress.mark("check/disk")
        assert await ask(port, get("/healthz")) == (200, "ok\n")


async def test_numbers_are_printed_in_full() -> None:
    shown = {'muster_agent_writes_total{outcome="ok"}': 1_234_567.0, "muster_agent_findings": 3.0}
    async with serve(Progress(), lambda: shown, "127.0.0.1", 0) as port:
        _, text = await ask(port, get("/metrics"))
    assert 'muster_agent_writes_total{outcome="ok"} 1234567\n' in text


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", get("/etc/passwd"), b"x" * 100_000]
)
async def test_server_keeps_answering_after_any_request(sent: bytes) -> None:
    async with serve(Progress(), dict, "127.0.0.1", 0) as port:
        try:
            code, _ = await ask(port, sent)
            assert code in (0, 404)
        except ConnectionError:
            pass  # too long a line is not read to its end
        assert (await ask(port, get("/healthz")))[0] == 200
