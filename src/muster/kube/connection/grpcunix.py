"""Makes one unary gRPC call without arguments over a unix socket. Own HTTP/2 code, because libraries are larger.

Frames: RFC 9113; headers without compression: RFC 7541, section 6.2.2; messages: gRPC over HTTP/2. The headers of the
answer are not read: a call that fails ends without a message, which is sufficient.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM: Final = 1
_NO_PUSH: Final = struct.pack("!HI", 2, 0)
_INITIAL_WINDOW: Final = 4
_EMPTY_MESSAGE: Final = b"\0\0\0\0\0"
_WINDOW_BYTES: Final = (1 << 16) - 1
"""The initial window of a server."""
_FRAME_BYTES_MAX: Final = 1 << 14


class CallError(Exception):
    """The call failed: there is no server, no answer in time, or an answer that is not gRPC."""


async def call(socket: str, method: str, timeout_s: float, *, bytes_max: int = _WINDOW_BYTES) -> bytes:
    """Call a method with an empty message.

    Args:
        socket: path of the socket.
        method: /PACKAGE.SERVICE/METHOD.
        timeout_s: the limit of the whole call.
        bytes_max: the longest answer, with its frames.

    Returns:
        The message of the answer, not decoded.

    Raises:
        CallError: as above.
        PermissionError: the socket may not be opened.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                return await _exchange(reader, writer, method, bytes_max)
            finally:
                writer.close()
    except TimeoutError:
        raise CallError(f"{socket}: no answer within {timeout_s:g} s") from None
    except PermissionError:
        raise
    except asyncio.IncompleteReadError:
        raise CallError(f"{socket}: closed before it answered") from None
    except OSError as error:
        raise CallError(f"{socket}: {error.strerror or error}") from error


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, bytes_max: int) -> bytes:
    writer.write(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, _NO_PUSH + struct.pack("!HI", _INITIAL_WINDOW, max(bytes_max, _WINDOW_BYTES)))
        + (_more_window(bytes_max - _WINDOW_BYTES) if bytes_max > _WINDOW_BYTES else b"")
        + _frame(_HEADERS, _END_HEADERS, _STREAM, _headers(method))
        + _frame(_DATA, _END_STREAM, _STREAM, _EMPTY_MESSAGE)
    )
    message = bytearray()
    while True:
        head = await reader.readexactly(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if size > _FRAME_BYTES_MAX:
            raise CallError("the answer is not HTTP/2")
        payload = await reader.readexactly(size)
        if kind == _SETTINGS and not flags & _ACK:
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_GOAWAY, _RST_STREAM):
            raise CallError("the call was refused")
        elif stream == _STREAM and kind == _DATA:
            message += payload[1 : size - payload[0]] if flags & _PADDED and payload else payload
            if len(message) > bytes_max:
                raise CallError("the answer is too long")
        if len(message) >= 5 and len(message) - 5 >= int.from_bytes(message[1:5], "big"):
            if message[0]:
                raise CallError("the answer is compressed, which was not asked for")
            return bytes(message[5 : 5 + int.from_bytes(message[1:5], "big")])
        if stream == _STREAM and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            raise CallError("the call ended with an error")


def _more_window(size: int) -> bytes:
    """Enlarge the window of the connection, which settings do not change (RFC 9113, section 6.9.2)."""
    return _frame(_WINDOW_UPDATE, 0, 0, size.to_bytes(4, "big"))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _headers(method: str) -> bytes:
    def text(value: str) -> bytes:
        return bytes((len(value),)) + value.encode()  # under 127 bytes: the length takes one byte

    return (
        b"\x83\x86"  # :method POST, :scheme http: whole entries of the static table
        + b"\x04" + text(method)  # :path
        + b"\x01" + text("localhost")  # :authority
        + b"\x0f\x10" + text("application/grpc")  # content-type, number 31
        + b"\x00" + text("te") + text("trailers")
    )  # fmt: skip


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of a protobuf message's fields: numbers, and bytes of texts and of nested messages.

    Raises:
        ValueError: it is not a protobuf message.
    """
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while shift < 70:
            if place >= len(message):
                raise ValueError("the message is cut off")
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise ValueError("a number is too long")

    while place < len(message):
        tag = number()
        kind, size = tag & 7, {1: 8, 5: 4}.get(tag & 7, 0)
        if kind == 0:
            yield tag >> 3, number()
            continue
        if kind == 2:
            size = number()
        elif not size:
            raise ValueError(f"a field has the kind {kind}")
        if place + size > len(message):
            raise ValueError("the message is cut off")
        yield tag >> 3, message[place : place + size]
        place += size
