"""Shards in the node cache. The cache here speaks the protocol of `muster.sdk.data.wire` and keeps shards in memory."""

from __future__ import annotations

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
from muster.sdk.data import wire
from muster.sdk.saves import node_shards
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
                file.write(data)
                file.seek(0)
                frame = wire.encode({"ok": True, "length": len(data), "source": self.source})
                connection.sendmsg([frame], wire.give_descriptors([file.fileno()]))
            return
        wire.send(connection, {"ok": True})

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def cache(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    folder = Path(tempfile.mkdtemp(prefix="mc-"))  # short: a socket's path has at most 107 characters
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
