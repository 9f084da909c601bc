"""The list of sandboxes over CRI: long answers within HTTP/2's flow control, and answers that are not CRI's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.network.addresses.reconcile.runtime import look_at_runtime
from muster.network.addresses.reconcile.snapshot import Sandbox

WINDOW = 65535  # RFC 9113, section 6.9.2
FRAME_MAX = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes((number << 3, value))
    size, length = len(value), b""
    while size >= 0x80:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + value


def sandbox(name: str, *, ready: bool) -> bytes:
    metadata = field(1, b"pod") + field(2, b"uid") + field(3, b"team")
    labels = field(7, b"a-label-of-some-length" * 8)
    return field(1, field(1, name.encode()) + field(2, metadata) + (b"" if ready else field(3, 1)) + labels)


@contextlib.asynccontextmanager
async def runtime(path: Path, message: bytes) -> AsyncIterator[None]:
    """A server that sends no more than the client's windows allow, and waits for more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            await reader.readexactly(24)
            of_connection, of_stream = WINDOW, WINDOW
            answer = b"\0" + len(message).to_bytes(4, "big") + message
            asked = False
            writer.write(frame(4, 0, 0))
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 4 and not head[4] & 1:
                    pairs = [payload[at : at + 6] for at in range(0, len(payload), 6)]
                    of_stream = {each[:2]: int.from_bytes(each[2:], "big") for each in pairs}.get(b"\0\4", of_stream)
                elif head[3] == 8:
                    of_connection += int.from_bytes(payload, "big")
                elif head[3] == 0 and head[4] & 1:
                    asked = True
                    writer.write(frame(1, 4, 1, b"\x88"))
                while asked and answer and (room := min(of_connection, of_stream, FRAME_MAX)) > 0:
                    part, answer = answer[:room], answer[room:]
                    of_connection, of_stream = of_connection - len(part), of_stream - len(part)
                    writer.write(frame(0, 0, 1, part))
                await writer.drain()

    server = await asyncio.start_unix_server(serve, str(path))
    async with server:
        yield


async def test_long_list_of_sandboxes_is_read_whole(tmp_path: Path) -> None:
    names = [f"sandbox-{number:04}" for number in range(2000)]
    message = b"".join(sandbox(name, ready=number % 3 > 0) for number, name in enumerate(names))
    assert len(message) > 5 * WINDOW
    async with runtime(tmp_path / "cri.sock", message):
        found = await look_at_runtime(tmp_path / "cri.sock")
    assert found == {name: Sandbox(name, number % 3 > 0) for number, name in enumerate(names)}


@pytest.mark.parametrize("message", [b"\x0a\xff", field(1, b""), field(1, field(3, 1)), b"\x0f"])
async def test_answer_that_is_not_of_cri_is_not_a_view(tmp_path: Path, message: bytes) -> None:
    async with runtime(tmp_path / "cri.sock", message):
        assert await look_at_runtime(tmp_path / "cri.sock") is None


async def test_empty_list_is_a_view_and_a_missing_socket_is_not(tmp_path: Path) -> None:
    async with runtime(tmp_path / "cri.sock", b""):
        assert await look_at_runtime(tmp_path / "cri.sock") == {}
    assert await look_at_runtime(tmp_path / "nothing.sock") is None
