"""Checkpoint shards in the node cache: kept on this node, copied to a peer, and found again after a fault.

Nothing here raises an error of the cache: if it fails, a save has no copy, and a restore reads the bucket.
"""

from __future__ import annotations

import array
import json
import os
import socket
import time
from typing import Any, NamedTuple

from muster.sdk.data.wire import ProtocolError, close_all, encode, receive

_CONNECT_S = 2.0
_SILENCE_S = 6.0
"""The cache says every second that it still works on a request."""
_BROKEN = (OSError, EOFError, ProtocolError, ValueError)


class Shard(NamedTuple):
    """A shard of a checkpoint, as in the manifest.

    Attributes:
        key: of its object.
        sha256: of its bytes, in hex.
        size_bytes: its length.
        checkpoint: path of the checkpoint.
        step: the checkpoint's step.
        attempt: the attempt that saved it.
    """

    key: str
    sha256: str
    size_bytes: int
    checkpoint: str
    step: int
    attempt: int


class Found(NamedTuple):
    """A shard on this node.

    Attributes:
        descriptor: of a read-only file that begins with the shard's bytes; the caller closes it. More bytes follow.
        size_bytes: length of the shard.
        source: "disk" or "peer".
    """

    descriptor: int
    size_bytes: int
    source: str


def keep(path: str, shard: Shard, copy: bool = False, confirmed: str = "", deadline_s: float = 600.0) -> bool:
    """Keep a file that this rank has saved as a shard, and return whether the node cache took it.

    The cache compares size and checksum. Older checkpoints leave once a newer one is confirmed.

    Args:
        path: the file; it may be removed afterwards.
        shard: what the file is.
        copy: also send a copy to the partner's cache, in the background.
        confirmed: path of the newest checkpoint that the controller has confirmed, if it is known.
        deadline_s: how long to wait for the cache.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        request = {"op": "keep", **_about(shard), "copy": copy, "confirmed": confirmed}
        answer, _ = _ask(request, deadline_s, descriptor)
    finally:
        os.close(descriptor)
    return bool(answer.get("ok"))


def kept(shard: Shard, deadline_s: float = 60.0) -> Found | None:
    """Return a shard from this node's cache or a peer's, verified; None if none has it in time: read the bucket."""
    request = {"op": "kept", **_about(shard), "deadline_s": int(deadline_s)}
    answer, descriptors = _ask(request, deadline_s, -1)
    if not answer.get("ok") or len(descriptors) != 1 or answer.get("length") != shard.size_bytes:
        close_all(descriptors)
        return None
    return Found(descriptors[0], shard.size_bytes, str(answer.get("source")))


def confirm(checkpoint: str, deadline_s: float = 10.0) -> bool:
    """Report that the controller confirmed a checkpoint, so that this node's cache drops older ones."""
    answer, descriptors = _ask({"op": "confirm", "checkpoint": checkpoint}, deadline_s, -1)
    close_all(descriptors)
    return bool(answer.get("ok"))


def _about(shard: Shard) -> dict[str, Any]:
    about = shard._asdict()
    about["size"] = about.pop("size_bytes")
    return about


def _ask(request: dict[str, Any], deadline_s: float, descriptor: int) -> tuple[dict[str, Any], list[int]]:
    """Send a request with this pod's ticket, and return the answer; {} if there is no cache or it fails."""
    path, ticket = os.environ.get("MUSTER_CACHE_SOCKET", ""), os.environ.get("MUSTER_CACHE_TICKET", "")
    if not path or not ticket:
        return {}, []
    end_s = time.monotonic() + deadline_s
    try:
        with open(ticket, encoding="utf-8") as file:
            join = {"op": "join", "ticket": json.load(file)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_S)
            connection.connect(path)
            connection.settimeout(_SILENCE_S)
            connection.sendall(encode(join))
            joined, descriptors = _answer(connection, end_s)
            close_all(descriptors)
            if not joined.get("ok"):
                return {}, []
            _send(connection, encode(request), descriptor)
            return _answer(connection, end_s)
    except _BROKEN:
        return {}, []


def _send(connection: socket.socket, frame: bytes, descriptor: int) -> None:
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
    sent = connection.sendmsg([frame], beside)
    connection.sendall(frame[sent:])


def _answer(connection: socket.socket, end_s: float) -> tuple[dict[str, Any], list[int]]:
    while True:
        answer, descriptors = receive(connection)
        if not answer.get("pending"):
            return answer, descriptors
        if time.monotonic() > end_s:
            raise TimeoutError("the deadline has passed")
