"""Checkpoint shards in the node cache: this node's newest ones, and those that peers keep. Every failure is harmless.

The protocol is in `muster.sdk.data.wire`: `join`, `keep`, `kept`, `confirm`. Without a ticket of the job the cache
refuses, and the shards come from the bucket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import Iterator, NamedTuple, Sequence

from muster.sdk import place
from muster.sdk.data import wire
from muster.sdk.data.wire import CacheUnavailable, Message
from muster.sdk.saves.manifest import Shard

SILENCE_S = 6.0
"""A cache that works on a request says so every second."""
LONGEST_S = 600.0
FETCH_S = 120.0
"""Time for one shard, before the bucket is read."""
FILES_MAX = 256
"""Most files of one rank and checkpoint that are given to the cache: each one is open meanwhile."""
_PIECE_BYTES = 1 << 20
_BROKEN = (OSError, EOFError, ValueError, KeyError, wire.ProtocolError)


class Kept(NamedTuple):
    """A shard on this node.

    Attributes:
        descriptor: a file that begins with the shard's bytes; the caller closes it.
        source: `disk` or `peer`.
    """

    descriptor: int
    source: str

    def read(self, size_bytes: int) -> Iterator[bytes]:
        """The shard's bytes in pieces. The cache's file may be longer."""
        offset = 0
        while offset < size_bytes:
            piece = os.pread(self.descriptor, min(_PIECE_BYTES, size_bytes - offset), offset)
            if not piece:
                return
            offset += len(piece)
            yield piece


class NodeShards:
    """A connection to the node cache of this node, as a member of the job's gang. For one thread at a time.

    Args:
        socket_path: the cache's socket.
        ticket_path: file with the job's ticket.

    Raises:
        CacheUnavailable: there is no cache, or it refuses this job.
    """

    def __init__(self, socket_path: str, ticket_path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(SILENCE_S)
            with wire.short_address(socket_path) as address:
                self._socket.connect(address)
            with open(ticket_path, encoding="utf-8") as file:
                ticket = json.load(file)
            self._ask({"op": "join", "ticket": ticket})
        except _BROKEN as error:
            self._socket.close()
            raise CacheUnavailable(f"the node cache did not answer: {error}") from None
        except BaseException:
            self._socket.close()
            raise

    def keep(self, shard: Shard, descriptor: int, checkpoint: str, step: int, confirmed: str) -> None:
        """Keep a shard of this node, and let the cache copy it to a partner. Raises CacheUnavailable."""
        message = dict(_named(shard, checkpoint, step), op="keep", copy=True, confirmed=confirmed)
        try:
            wire.close_all(self._ask(message, [descriptor])[1])
        except _BROKEN as error:
            raise CacheUnavailable(f"the node cache did not keep {shard.key}: {error}") from None

    def kept(self, shard: Shard, checkpoint: str, step: int, attempt: int, deadline_s: float) -> Kept:
        """Ask for a shard that this node or a peer keeps. Raises CacheUnavailable if there is none."""
        message = dict(_named(shard, checkpoint, step), op="kept", attempt=attempt, deadline_s=int(deadline_s))
        try:
            answer, descriptors = self._ask(message)
        except _BROKEN as error:
            raise CacheUnavailable(f"the node cache did not give {shard.key}: {error}") from None
        if not descriptors:
            raise CacheUnavailable(f"the node cache sent no descriptor for {shard.key}")
        return Kept(descriptors[0], str(answer.get("source", "disk")))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _ask(self, message: Message, descriptors: Sequence[int] = ()) -> tuple[Message, list[int]]:
        end = time.monotonic() + LONGEST_S
        frame = wire.encode(message)
        sent = self._socket.sendmsg([frame], wire.give_descriptors(descriptors))
        self._socket.sendall(frame[sent:])
        while True:
            answer, received = wire.receive(self._socket)
            if not answer.get("pending"):
                break
            if time.monotonic() > end:
                raise TimeoutError("it still works on the request")
        if "error" in answer:
            wire.close_all(received)
            raise CacheUnavailable(str(answer.get("message", "")), str(answer["error"]))
        return answer, received


def connect() -> NodeShards | None:
    """Connect to the node cache that this pod has; None without one, and if it cannot be used."""
    path, ticket = os.environ.get("MUSTER_CACHE_SOCKET", ""), os.environ.get("MUSTER_CACHE_TICKET", "")
    if not path or not ticket or not place.attempt():
        return None
    try:
        return NodeShards(path, ticket)
    except CacheUnavailable:
        return None


def _named(shard: Shard, checkpoint: str, step: int) -> Message:
    return {
        "key": shard.key, "sha256": shard.sha256, "size": shard.size_bytes, "checkpoint": checkpoint, "step": step,
    }  # fmt: skip


class Offers:
    """Gives shards to the node cache, in a thread. While it works on one checkpoint, others are skipped.

    Attributes:
        thread: the last thread.
    """

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self._busy = threading.Lock()

    def offer(self, files: Sequence[tuple[Shard, str]], checkpoint: str, step: int, confirmed: str = "") -> None:
        """Give shards and their local files to the cache. The files may be removed as soon as the call returns."""
        if not os.environ.get("MUSTER_CACHE_TICKET") or not self._busy.acquire(blocking=False):
            return
        opened: list[tuple[Shard, int]] = []
        with contextlib.suppress(OSError):
            for shard, file in files[:FILES_MAX]:
                opened.append((shard, os.open(file, os.O_RDONLY | os.O_CLOEXEC)))
        self.thread = threading.Thread(
            target=self._work, args=(opened, checkpoint, step, confirmed), name="muster-keep", daemon=True
        )
        try:
            self.thread.start()
        except RuntimeError:  # Python refuses new threads while it exits
            self._end(opened)

    def _work(self, opened: list[tuple[Shard, int]], checkpoint: str, step: int, confirmed: str) -> None:
        try:
            node = connect()
            if node is not None:
                with contextlib.closing(node), contextlib.suppress(CacheUnavailable):
                    for shard, descriptor in opened:
                        node.keep(shard, descriptor, checkpoint, step, confirmed)
        finally:
            self._end(opened)

    def _end(self, opened: list[tuple[Shard, int]]) -> None:
        wire.close_all([descriptor for _, descriptor in opened])
        self._busy.release()


offers = Offers()
