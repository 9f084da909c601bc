"""The protocol between caches: a mutual handshake with the gang's key, then authenticated messages and raw bytes.

Handshake, one frame each: client {version, uid, attempt, address, nonce}; server {nonce, mac} or {error}; client {mac}.
A mac is HMAC-SHA256(gang key, role, uid, attempt, address called, both nonces). So each side proves that it holds the
key, for this server, and nothing can be replayed. A later message carries the mac of its number and content.

A message may announce `length` raw bytes and their `sha256`. They follow without a mac: the checksum authenticates
them, because the message is authenticated. Nothing is encrypted, like the traffic of collectives.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any, Final

from muster.data.peers.holder import STORE_CODES
from muster.kube import frames

VERSION: Final = 1
HANDSHAKE_BYTES_MAX: Final = 1024
MESSAGE_BYTES_MAX: Final = 512 << 10
CHUNK_BYTES: Final = 1 << 20
HANDSHAKE_S: Final = 5.0
_MAC_BYTES: Final = 32

Message = dict[str, Any]


class PeerError(Exception):
    """A peer did not do what was asked. Attribute `code`: why, as in `Code`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class Code:
    """Values of `error` in an answer, beside those of the cache's own protocol."""

    BUSY: Final = "busy"  # too many connections
    NO_READER: Final = "no-reader"  # the node has no reader of this gang
    ENDED: Final = "ended"  # a newer attempt of the job has readers here
    WRONG_KEY: Final = "wrong-key"
    MALFORMED: Final = "malformed"
    VERSION: Final = "version"
    MISSING: Final = "missing"  # the node does not hold these bytes
    NO_ROOM: Final = "no-room"
    WRONG_BYTES: Final = "wrong-bytes"  # the bytes differ from the announced checksum
    SLOW: Final = "slow"  # no sign of life, too few bytes, or no block in time
    GONE: Final = "gone"  # the connection cannot be opened, or broke


def code_of(answer: Message) -> str:
    """Return the code of an answer with `error`; a code that is not known counts as malformed."""
    known = {value for name, value in vars(Code).items() if name.isupper()} | STORE_CODES
    found = answer.get("error")
    return found if isinstance(found, str) and found in known else Code.MALFORMED


class Stream:
    """An authenticated connection, for both sides.

    Args:
        own, other: the roles, "client" and "server".
        nonces: of client and server.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        own: str,
        other: str,
        nonces: tuple[str, str],
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._send_key, self._receive_key = (mac(key, "messages", side, *nonces) for side in (own, other))
        self._sent = self._received = 0

    async def send(self, message: Message) -> None:
        """Send a message. Raises OSError."""
        body = encode(message)
        self.writer.write(frames.frame(body) + self._mac(self._send_key, self._sent, body))
        self._sent += 1
        await self.writer.drain()

    async def receive(self) -> Message:
        """Return the next message. Raises PeerError, OSError, IncompleteReadError at the end."""
        body = await read_frame(self.reader, MESSAGE_BYTES_MAX)
        found = await self.reader.readexactly(_MAC_BYTES)
        if not hmac.compare_digest(found, self._mac(self._receive_key, self._received, body)):
            raise PeerError(Code.WRONG_KEY, "a message is not the peer's")
        self._received += 1
        return decode(body)

    def close(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()

    def _mac(self, key: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(key, struct.pack(">Q", number) + body, "sha256")


async def serve_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, hello: Message, key: bytes
) -> Stream:
    """Prove the key to a client whose first message is `hello`, and verify its proof. Raises PeerError, OSError."""
    nonce = secrets.token_hex(16)
    about = (hello["uid"], hello["attempt"], address, hello["nonce"], nonce)
    await write_frame(writer, {"nonce": nonce, "mac": mac(key, "server", *about).hex()})
    answer = decode(await read_frame(reader, HANDSHAKE_BYTES_MAX))
    if not hmac.compare_digest(mac(key, "client", *about).hex().encode(), str(answer.get("mac")).encode()):
        raise PeerError(Code.WRONG_KEY, "the client does not hold the gang's key for this address")
    return Stream(reader, writer, key, "server", "client", (hello["nonce"], nonce))


async def open_stream(address: str, uid: str, attempt: int, key: bytes, connect_s: float) -> Stream:
    """Connect to a peer and authenticate. Raises PeerError, OSError, TimeoutError, IncompleteReadError."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(connect_s):
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=2 * CHUNK_BYTES)
    try:
        set_options(writer)
        async with asyncio.timeout(HANDSHAKE_S):
            return await _authenticate(reader, writer, address, uid, attempt, key)
    except BaseException:
        writer.transport.abort()
        raise


async def _authenticate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, uid: str, attempt: int, key: bytes
) -> Stream:
    nonce = secrets.token_hex(16)
    await write_frame(writer, {"version": VERSION, "uid": uid, "attempt": attempt, "nonce": nonce})
    answer = decode(await read_frame(reader, HANDSHAKE_BYTES_MAX))
    if "error" in answer:
        raise PeerError(code_of(answer))
    theirs = str(answer.get("nonce"))
    about = (uid, attempt, address, nonce, theirs)
    if not hmac.compare_digest(mac(key, "server", *about).hex().encode(), str(answer.get("mac")).encode()):
        raise PeerError(Code.WRONG_KEY, "the server does not hold the gang's key for this address")
    await write_frame(writer, {"mac": mac(key, "client", *about).hex()})
    return Stream(reader, writer, key, "client", "server", (nonce, theirs))


def set_options(writer: asyncio.StreamWriter) -> None:
    """Detect a lost node within 30 s, and send small messages at once."""
    sock: socket.socket = writer.get_extra_info("socket")
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)


_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


def mac(key: bytes, *parts: object) -> bytes:
    """HMAC-SHA256 of the parts, unambiguously joined."""
    return hmac.new(key, json.dumps([str(part) for part in parts]).encode(), hashlib.sha256).digest()


def encode(message: Message) -> bytes:
    """Return the message as JSON."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode(body: bytes) -> Message:
    """Return the object in a frame. Raises PeerError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise PeerError(Code.MALFORMED, "a frame is not JSON") from None
    if not isinstance(message, dict):
        raise PeerError(Code.MALFORMED, "a frame is not a JSON object")
    return message


async def read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """Read one frame. Raises PeerError if it is too long, IncompleteReadError at the end, OSError."""
    try:
        return await frames.read_frame(reader, limit_bytes)
    except frames.FrameTooLong as error:
        raise PeerError(Code.MALFORMED, str(error)) from None


async def write_frame(writer: asyncio.StreamWriter, message: Message) -> None:
    """Write one frame of the handshake. Raises OSError."""
    body = encode(message)
    writer.write(frames.frame(body))
    await writer.drain()
