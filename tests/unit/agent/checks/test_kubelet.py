"""The check `kubelet` against local servers that answer, refuse, hang, break off and talk nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from muster.agent.check import Host, Setup
from muster.agent.checks.kubelet import CODES, KubeletCheck, make
from muster.fleet.health.finding import Finding
from tests.support.waiting import until
from tests.unit.agent.checks.conftest import write

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Says the same to everybody, or listens and says nothing."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.answer: bytes | None = OK
        self.asked: list[bytes] = []
        self.stack = stack
        self.url = ""

    async def start(self) -> Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        await self.stack.enter_async_context(server)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is None:
                await reader.read()  # until the other side has had enough
            else:
                writer.write(self.answer)
                await writer.drain()
        finally:
            writer.close()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes((number << 3, value))
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


def status(**conditions: bool) -> bytes:
    """A StatusResponse as a gRPC message; what is false is left out, as protobuf has it."""
    parts = b"".join(
        field(1, field(1, kind.encode()) + (field(2, 1) if holds else field(3, b"Why") + field(4, b"because")))
        for kind, holds in conditions.items()
    )
    message = field(1, parts) + field(2, field(1, b"config") + field(2, b"{}"))
    return b"\0" + len(message).to_bytes(4, "big") + message


HEADERS = frame(1, 4, 1, b"\x88")
TRAILERS = frame(1, 5, 1, b"\x88")
WELL = status(RuntimeReady=True, NetworkReady=True)


class Runtime:
    """A container runtime's socket: HTTP/2 frames as gRPC servers send them."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.path = path
        self.stack = stack
        self.frames: list[bytes] | None = []
        self.calls: list[bytes] = []
        self.acknowledged = 0

    async def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        server = await asyncio.start_unix_server(self._serve, str(self.path))
        await self.stack.enter_async_context(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 1:
                    self.calls.append(payload)
                if head[3] == 4 and head[4] & 1:
                    self.acknowledged += 1
                if head[3] == 0 and head[4] & 1 and self.frames is not None:
                    writer.write(
                        frame(4, 0, 0, b"\0\5\0\0\x40\0") + frame(6, 0, 0, b"12345678") + b"".join(self.frames)
                    )
                    await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.agent.checks.kubelet._ASK_S", 60.0)  # a busy machine answers too


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for long for what hangs."""
    monkeypatch.setattr("muster.agent.checks.kubelet._ASK_S", 0.2)


def looker(host: Host, **options: object) -> KubeletCheck:
    (host.root / "var/lib/kubelet").mkdir(parents=True, exist_ok=True)
    options = {"healthzUrl": "", "runtimeSockets": ["/run/cri.sock"], **options}
    made = make(Setup(node="n", host=host, options=msgspec.Raw(json.dumps(options).encode())))
    assert made is not None
    return made


async def looks(check: KubeletCheck, count: int = 3, start_s: float = 1000.0) -> list[Finding]:
    found = [each for number in range(count) for each in await check.look(start_s + 20 * number)]
    assert {(each.check, each.code) for each in found} <= CODES
    return found


def said(findings: list[Finding]) -> list[str]:
    return [each.code for each in findings]


async def test_a_kubelet_that_is_well(host: Host, stack: AsyncExitStack) -> None:
    server = await Server(stack).start()
    assert await looks(looker(host, healthzUrl=server.url)) == []
    assert server.asked[0].startswith(b"GET /healthz HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nplegs",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["hangs", "500", "cut off", "closes", "not HTTP", "not chunks"],
)
async def test_a_kubelet_that_is_not_well(
    host: Host, stack: AsyncExitStack, answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await Server(stack).start()
    server.answer = answer
    check = looker(host, healthzUrl=server.url)
    with monkeypatch.context() as patch:
        if answer is None:
            impatient(patch)
        found = await looks(check)
    assert said(found) == ["unhealthy"]
    assert found[0].first_s == 1000.0  # when it began, though it is reported only if it lasts
    server.answer = OK
    assert await looks(check, 3, 1060) == []


async def test_a_kubelet_that_is_gone(host: Host) -> None:
    found = await looks(looker(host, healthzUrl="http://127.0.0.1:9/healthz"))
    assert said(found) == ["unhealthy"]
    assert "refused" in found[0].message


async def test_a_restart_of_the_kubelet_is_nothing(host: Host, stack: AsyncExitStack) -> None:
    server = await Server(stack).start()
    check = looker(host, healthzUrl=server.url)
    for round_s in (1000.0, 1100.0, 1200.0):
        server.answer = b""
        assert await looks(check, 2, round_s) == []
        server.answer = OK
        assert await looks(check, 2, round_s + 40) == []


@pytest.mark.parametrize(
    ("seen", "codes"),
    [("1e3", []), ("810", ["pleg"]), ("0", []), ("NaN", []), ("garbage", []), ("+Inf", [])],
)
async def test_a_kubelet_that_does_not_look_at_its_pods(
    host: Host, stack: AsyncExitStack, seen: str, codes: list[str]
) -> None:
    server = await Server(stack).start()
    page = f"# TYPE kubelet_pleg_last_seen_seconds gauge\nkubelet_pleg_last_seen_seconds {seen}\n".encode()
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    assert said(await looks(looker(host, metricsUrl=server.url), 1)) == codes


@pytest.mark.parametrize(
    ("frames", "codes"),
    [
        ([HEADERS, frame(0, 0, 1, WELL), TRAILERS], []),
        ([HEADERS, frame(0, 8, 1, b"\3" + WELL + b"\0\0\0"), TRAILERS], []),
        ([HEADERS, frame(0, 0, 1, WELL[:7]), frame(0, 0, 1, WELL[7:]), TRAILERS], []),
        ([HEADERS, frame(0, 0, 1, status(RuntimeReady=False, NetworkReady=True))], ["runtime"]),
        ([HEADERS, frame(0, 0, 1, status(RuntimeReady=True, NetworkReady=False))], ["network"]),
        ([TRAILERS], ["runtime"]),
        ([frame(7, 0, 0, b"\0" * 8)], ["runtime"]),
        ([frame(3, 0, 1, b"\0" * 4)], ["runtime"]),
        ([HEADERS, frame(0, 1, 1, b"\0\0\0\0\0")], ["runtime"]),
        ([HEADERS, frame(0, 1, 1, b"\0\0\0\0\3\xff\xff\xff")], ["runtime"]),
        ([HEADERS, frame(0, 0, 1, b"\1" + WELL[1:])], ["runtime"]),
        ([b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"], ["runtime"]),
        (None, ["runtime"]),
    ],
    ids=[
        "well", "padded", "in two frames", "not ready", "no network", "error", "goaway", "reset", "empty", "garbage",
        "compressed", "not HTTP/2", "hangs",
    ],
)  # fmt: skip
async def test_container_runtime(
    host: Host, stack: AsyncExitStack, frames: list[bytes] | None, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if frames is None:
        impatient(monkeypatch)
    runtime = Runtime(host.root / "run/cri.sock", stack)
    await runtime.start()
    runtime.frames = frames
    assert said(await looks(looker(host))) == codes
    await until("it was asked", lambda: runtime.calls)
    assert b"/runtime.v1.RuntimeService/Status" in runtime.calls[0]


async def test_a_runtime_that_stopped_is_missed_once_it_was_there(host: Host, stack: AsyncExitStack) -> None:
    check = looker(host)
    assert await looks(check) == []
    async with AsyncExitStack() as running:
        runtime = Runtime(host.root / "run/cri.sock", running)
        await runtime.start()
        runtime.frames = [HEADERS, frame(0, 0, 1, WELL), TRAILERS]
        assert await looks(check, 1, 1060) == []
    assert said(await looks(check, 3, 1080)) == ["runtime"]
    runtime.path.unlink(missing_ok=True)
    assert said(await looks(check, 3, 5000)) == ["runtime"]


async def test_unopenable_socket_causes_no_finding(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Root may open all of them, so the refusal is made."""
    write(host.root / "run/cri.sock", "")

    async def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("asyncio.open_unix_connection", refused)
    assert await looks(looker(host)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "/run/cri.sock may not be opened by this user: the container runtime is not queried"
    ]


def test_a_node_without_a_kubelet_is_not_looked_at(host: Host) -> None:
    assert make(Setup(node="n", host=host)) is None


@pytest.mark.parametrize(
    "options", [{"healthzUrl": "https://127.0.0.1/healthz"}, {"metricsUrl": "127.0.0.1"}, {"plegS": 0}]
)
def test_settings_that_do_not_fit_are_refused(host: Host, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"http://|\$\.plegS"):
        looker(host, **options)
