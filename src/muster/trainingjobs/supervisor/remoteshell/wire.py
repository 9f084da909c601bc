"""The remote shell's wire format: a handshake, then frames.

Handshake, one JSON line each: server {"nonce"}; client {"attempt", "nonce", "mac"}; server {"mac"} or {"error"}.
A mac is HMAC-SHA256(attempt key, role, job UID, attempt, address called, both nonces): each side proves that it
holds the key, for this pod's address, and nothing can be replayed. Then frames, each with the mac of its number and
content.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import time
from typing import Any

HANDSHAKE_S = 10.0  # time limit of the handshake
MAX_FRAME_BYTES = 1 << 20
SSHD_MARK = " muster-attempt-{}"  # suffix of the first line of an attempt's sshd
COMMAND, STDIN, STDIN_END, STDOUT, STDERR, EXIT = range(6)


class ShellRefused(Exception):
    """The peer refused, or could not authenticate. `again`: a later try may succeed."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


def shell_mac(key: bytes, *parts: object) -> str:
    """Hex HMAC-SHA256 over the parts, unambiguously joined."""
    return hmac.new(key, json.dumps([str(part) for part in parts]).encode(), hashlib.sha256).hexdigest()


def read_line(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """Reads one JSON line of a handshake, byte by byte so that no later data is taken."""
    line = b""
    while not line.endswith(b"\n"):
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > 4096 or time.monotonic() > deadline:
            raise ShellRefused("handshake broken off", again=not line)
        line += byte
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ShellRefused("handshake: not an object")
    return message


def send_line(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON line of a handshake."""
    sock.sendall(json.dumps(message).encode() + b"\n")


class Channel:
    """Framed, authenticated bytes over a socket after the handshake."""

    def __init__(self, sock: socket.socket, key: bytes, role: str, nonces: str) -> None:
        self.sock = sock
        sock.settimeout(60.0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a lost node is detected within 45 s
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6), ("TCP_NODELAY", 1)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        other = "client" if role == "server" else "server"
        self._out, self._in = (bytes.fromhex(shell_mac(key, "frames", side, nonces)) for side in (role, other))
        self._sent = self._received = 0
        self._buffer = b""

    def _frame_mac(self, key: bytes, number: int, frame: bytes) -> bytes:
        return hmac.new(key, struct.pack(">Q", number) + frame, hashlib.sha256).digest()[:16]

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame."""
        frame = struct.pack(">BI", kind, len(payload)) + payload
        self.sock.sendall(frame + self._frame_mac(self._out, self._sent, frame))
        self._sent += 1

    def receive(self) -> list[tuple[int, bytes]]:
        """Return received frames; blocks until data arrives.

        Raises ConnectionError at the end or for a forged frame.
        """
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        self._buffer += data
        frames = []
        while len(self._buffer) >= 5:
            kind, size = struct.unpack(">BI", self._buffer[:5])
            if size > MAX_FRAME_BYTES:
                raise ConnectionError("frame too large")
            if len(self._buffer) < 5 + size + 16:
                break
            frame, mac = self._buffer[: 5 + size], self._buffer[5 + size : 21 + size]
            if not hmac.compare_digest(mac, self._frame_mac(self._in, self._received, frame)):
                raise ConnectionError("a frame is not the peer's")
            self._received += 1
            self._buffer = self._buffer[21 + size :]
            frames.append((kind, frame[5:]))
        return frames
