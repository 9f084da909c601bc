"""Messages on the unix socket between a shim (`rank`) and `run`, with file descriptors."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any


def send_message(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Sends one JSON message between a rank's `rank` process and `run`, with optional file descriptors."""
    data = json.dumps(message).encode()
    data = struct.pack(">I", len(data)) + data
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    sent = sock.sendmsg([data], rights)
    if sent < len(data):  # sending to a peer that has closed would fail
        sock.sendall(data[sent:])


def receive_message(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its file descriptors; None at the end."""
    data = b""
    fds: list[int] = []
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        want = 4 - len(data) if len(data) < 4 else 4 + struct.unpack(">I", data[:4])[0] - len(data)
        part, ancillary, _, _ = sock.recvmsg(want, socket.CMSG_SPACE(8 * 4))
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds += struct.unpack(f"{len(value) // 4}i", value[: len(value) // 4 * 4])
        if not part:
            return None, fds
        data += part
    message: dict[str, Any] = json.loads(data[4:])
    return message, fds
