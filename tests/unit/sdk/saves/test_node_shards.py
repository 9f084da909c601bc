"""Shards in the node cache. The cache here speaks the protocol of `muster.sdk.data.wire` and keeps shards in memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.api.cache_ticket import Peer, PeerList
from muster.sdk.data import wire
from muster.sdk.saves import node_shards
from tests.support.nodecache import NodeCache, node_cache
from tests.support.peergang import SIGNER, loopback, ticket_file
from tests.support.waiting import TIMEOUT_S
from tests.unit.sdk.saves.conftest import Job, read, text


class Cache:
    """A node cache of one node; `kept` are the shards by checksum."""

    def __init__(self, path: Path) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked: list[dict[str, Any]] = []
        self.source = "disk"
        self.broken = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._session, args=(connection,), daemon=True).start()

    def _session(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    message, descriptors = wire.receive(connection)
                except (EOFError, OSError):
                    return
                self.asked.append(message)
                if self.broken:
                    return
                wire.send(connection, {"pending": True})
                self._answer(connection, message, descriptors)

    def _answer(self, connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["op"] == "keep":
            self.kept[message["sha256"]] = os.pread(descriptors[0], message["size"], 0)
            wire.close_all(descriptors)
        elif message["op"] == "kept":
            data = self.kept.get(message["sha256"])
            if data is None:
                wire.send(connection, {"error": "missing", "message": "not here"})
                return
            with tempfile.TemporaryFile() as file:
                file.write(data + b"what the cache notes about it")
                file.flush()
                frame = wire.encode({"ok": True, "length": len(data), "source": self.source})
                connection.sendmsg([frame], wire.give_descriptors([file.fileno()]))
            return
        wire.send(connection, {"ok": True})

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def cache(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    folder = Path(tempfile.mkdtemp(prefix="mc-"))  # the path of a socket that listens has at most 107 characters
    ticket = tmp_path_factory.mktemp("ticket") / "ticket"
    ticket.write_text(json.dumps({"ticket": "t", "key": "k", "peers": []}))
    cache = Cache(folder / "cache.sock")
    job.monkeypatch.setenv("MUSTER_CACHE_SOCKET", str(folder / "cache.sock"))
    job.monkeypatch.setenv("MUSTER_CACHE_TICKET", str(ticket))
    yield cache
    cache.close()
    (folder / "cache.sock").unlink()
    folder.rmdir()


def saved(step: int, content: str) -> None:
    muster.save_checkpoint(step, text(content))
    node_shards.offers.thread.join(20)


def restored(job: Job) -> tuple[str, dict[str, int]]:
    job.start(job.controller.attempt + 1)
    loaded = muster.load_checkpoint(read)
    assert loaded is not None
    node_shards.offers.thread.join(20)
    return loaded[0], job.controller.outcomes[-1]["bytesFrom"]


@pytest.mark.parametrize("source", ["disk", "peer"])
def test_shards_come_from_the_node_or_a_peer_and_the_bucket_is_not_read(job: Job, cache: Cache, source: str) -> None:
    saved(1, "weights")
    keep = next(each for each in cache.asked if each["op"] == "keep")
    assert (keep["step"], keep["size"], keep["copy"]) == (1, 7, True)
    assert keep["confirmed"] == keep["checkpoint"] == job.controller.confirmed[0]["path"]
    cache.source = source
    assert restored(job) == ("weights", {"bucket": 0, "peer": 0, "disk": 0, source: 7})


def test_shards_that_the_cache_lacks_come_from_the_bucket_and_are_kept_then(job: Job, cache: Cache) -> None:
    saved(1, "weights")
    cache.kept.clear()
    assert restored(job) == ("weights", {"bucket": 7, "peer": 0, "disk": 0})
    assert list(cache.kept.values()) == [b"weights"]


def test_wrong_bytes_of_the_cache_are_never_used(job: Job, cache: Cache) -> None:
    saved(1, "weights")
    cache.kept = dict.fromkeys(cache.kept, b"WEIGHTS")
    assert restored(job) == ("weights", {"bucket": 7, "peer": 0, "disk": 0})


def test_cache_that_breaks_never_fails_a_save_or_a_load(job: Job, cache: Cache) -> None:
    cache.broken = True
    saved(1, "weights")
    assert restored(job) == ("weights", {"bucket": 7, "peer": 0, "disk": 0})
    cache.close()
    job.monkeypatch.setenv("MUSTER_CACHE_SOCKET", "/nowhere/cache.sock")
    saved(2, "w2")
    assert restored(job)[0] == "w2"


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[NodeCache, str]]]:
    """Caches of two nodes as processes, each with the address at which the other one finds it."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "ticket.pub").write_text(SIGNER.public_key + "\n")
    addresses = loopback(2)
    with contextlib.ExitStack() as stack:
        options = ("--size=1Gi", "--floor=0", f"--ticket-key={folder / 'ticket.pub'}")
        yield [
            (stack.enter_context(node_cache(folder / str(number), *options, f"--address={address}")), address)
            for number, address in enumerate(addresses)
        ]


@pytest.mark.slow
def test_real_caches_restore_on_the_own_node_and_on_a_new_one(job: Job, nodes: list[tuple[NodeCache, str]]) -> None:
    job.monkeypatch.setattr(node_shards, "SILENCE_S", TIMEOUT_S)
    group = tuple(Peer(slot, address) for slot, (_, address) in enumerate(nodes))

    def on(node: int, attempt: int) -> str:
        """Become a rank of this node; returns the path of its ticket."""
        path = job.folder / f"ticket-{node}-{attempt}"
        path.write_text(json.dumps(ticket_file("uid", attempt, node, PeerList(group=group, partner=group[1 - node]))))
        job.monkeypatch.setenv("MUSTER_CACHE_SOCKET", nodes[node][0].socket_path)
        job.monkeypatch.setenv("MUSTER_CACHE_TICKET", str(path))
        return str(path)

    on(0, 1)
    saved(1, "weights")
    on(0, 2)
    assert restored(job) == ("weights", {"bucket": 0, "peer": 0, "disk": 7})
    with contextlib.closing(node_shards.NodeShards(nodes[0][0].socket_path, on(0, 3))):  # as the node's supervisor
        on(1, 3)
        content, sources = restored(job)
    assert content == "weights"
    assert sources["bucket"] == 0
    assert sources["peer"] + sources["disk"] == 7  # the copy may be there already
