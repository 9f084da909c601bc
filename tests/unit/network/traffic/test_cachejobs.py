"""The agent asks the node's real data cache whose bytes it moves."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.traffic import cachejobs
from muster.network.traffic.cachejobs import CacheJob, cache_jobs
from muster.sdk.data.wire import VERSION, receive, send
from tests.support.nodecache import NodeCache


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachejobs, "TIMEOUT_S", 60.0)  # a busy machine answers too


@pytest.fixture(scope="module")
def cache() -> Iterator[NodeCache]:
    with tempfile.TemporaryDirectory(prefix="cachejobs-") as folder:
        made = NodeCache(Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.kill()


def test_readers_of_a_real_cache_are_read_from_its_control_socket(cache: NodeCache) -> None:
    control = str(cache.state / "control.sock")
    assert {(each.namespace, each.job, each.mark) for each in cache_jobs(control)} == {("", "", 0)}
    with cache.connect() as reader:
        store = {"url": "s3://bucket/prefix", "endpoint": "https://192.0.2.1", "region": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        send(reader, {"op": "hello", "version": VERSION, "store": store, "credentials": keys})
        answer, _ = receive(reader)
        assert answer.get("ok"), answer
        found = cache_jobs(control)
    assert len(found) == 2, "the reader without a ticket, and all others"
    assert all((each.namespace, each.job, each.mark, each.bucket_bytes) == ("", "", 0, 0) for each in found)


def test_job_of_a_ticket_has_its_namespace_its_mark_and_its_bytes(tmp_path: Path) -> None:
    """The daemon of a test has no tickets, so this one answers in its place, after it has let the agent wait."""
    path = str(tmp_path / "control.sock")
    entry = {"job": "u1", "name": "team-a/train", "mark": 4097, "bytes": {"bucket": 7, "peer": 8, "disk": 9}}
    answers = [
        {"pending": True},
        {"ok": True, "jobs": [entry, {"job": "u2"}, {"job": "u3", "name": "n/x", "mark": "?"}]},
    ]

    def serve() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            ready.set()
            connection, _ = listener.accept()
            with connection:
                assert receive(connection)[0] == {"op": "status"}
                for answer in answers:
                    send(connection, answer)

    ready = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(30)
    try:
        assert cache_jobs(path) == [CacheJob("team-a", "train", 4097, 7)]
    finally:
        thread.join(30)


@pytest.mark.slow
def test_cache_that_is_away_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        cache_jobs(str(tmp_path / "control.sock"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "full.sock"))
        with pytest.raises(OSError, match="refused"):
            cache_jobs(str(tmp_path / "full.sock"))
