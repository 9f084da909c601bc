"""The supervisor's connection to the node cache: it makes the node a member of its gang while an attempt runs.

Ranks come and go, and may not use the cache themselves. Peers are served only while a reader of the gang is registered,
so the supervisor is one. The protocol is the one of `muster.sdk.data.wire`.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

from ..basics import log

PERIOD_S = 5.0
ANSWER_S = 5.0
MAX_BYTES = 1 << 20


class NodeCache(threading.Thread):
    """Keeps the connection, and knows the cache's address for peers.

    Args:
        path: the cache's socket; "" without a cache, and the thread then ends at once.
    """

    def __init__(self, path: str) -> None:
        super().__init__(name="node-cache", daemon=True)
        self._path = path
        self._changed = threading.Event()
        self._ticket = ""
        self._address, self._expires = "", 0

    def report(self) -> dict[str, Any]:
        """Returns the fields of a report to the controller."""
        return {"cacheAddress": self._address, "cacheExpires": self._expires} if self._address else {}

    def follow(self, ticket: str) -> None:
        """Use the ticket in this file from now on; "" for none."""
        self._ticket, self._expires = ticket, 0
        if ticket:
            try:
                with open(ticket, encoding="utf-8") as file:
                    self._expires = int(json.load(file).get("expires", 0))
            except (OSError, ValueError, TypeError) as error:
                log(f"the ticket for the node cache cannot be read: {type(error).__name__}")
        self._changed.set()

    def run(self) -> None:
        """Connect for ever."""
        while self._path:
            self._changed.clear()
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(ANSWER_S)
                    connection.connect(self._path)
                    self._attend(connection)
            except (OSError, ValueError, EOFError):
                self._changed.wait(PERIOD_S)  # without the cache, readers use the bucket

    def _attend(self, connection: socket.socket) -> None:
        """Join with the current ticket, and ask for the address from time to time. Ends when the ticket changes."""
        if self._ticket:
            with open(self._ticket, encoding="utf-8") as file:
                _ask(connection, {"op": "join", "ticket": json.load(file)})
        while not self._changed.is_set():
            self._address = str(_ask(connection, {"op": "status"}).get("address", ""))
            self._changed.wait(PERIOD_S)


def _ask(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return its answer. Raises OSError, EOFError, ValueError."""
    body = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)
    while True:
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        if length > MAX_BYTES:
            raise ValueError("a frame is too long")
        answer = json.loads(_exactly(connection, length))
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        if not answer.get("pending"):
            return answer


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count > 0:
        data = connection.recv(count)
        if not data:
            raise EOFError("the node cache closed the connection")
        parts.append(data)
        count -= len(data)
    return b"".join(parts)
