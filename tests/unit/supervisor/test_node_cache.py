"""The supervisor is a member of its gang at the node cache, and knows the cache's address, whatever the cache does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.api.cache_ticket import PeerList
from muster.trainingjobs.supervisor.ranks import nodecache
from muster.trainingjobs.supervisor.ranks.nodecache import NodeCache
from muster.trainingjobs.supervisor.ranks.shared import replace_ticket
from tests.support.nodecache import NodeCache as Daemon
from tests.support.nodecache import node_cache
from tests.support.peergang import SIGNER, loopback, ticket_file
from tests.support.waiting import eventually


@pytest.fixture
def address() -> str:
    return loopback(1)[0]


@pytest.fixture
def daemon(tmp_path: Path, address: str) -> Iterator[Daemon]:
    keys = tmp_path / "ticket.pub"
    keys.write_text(SIGNER.public_key)
    with node_cache(tmp_path, "--size=1Gi", "--floor=0", f"--address={address}", f"--ticket-key={keys}") as daemon:
        yield daemon


def member(monkeypatch: pytest.MonkeyPatch, path: str) -> NodeCache:
    monkeypatch.setattr(nodecache, "PERIOD_S", 0.05)
    cache = NodeCache(path)
    cache.start()
    return cache


def readers(daemon: Daemon) -> dict[str, int]:
    return {job["job"]: job["readers"] for job in daemon.status()["jobs"] if job["readers"]}


def write_ticket(path: Path, attempt: int, expires: int) -> str:
    content: dict[str, Any] = ticket_file("u-1", attempt, 0, PeerList(), expires=expires)
    path.write_text(json.dumps({**content, "expires": expires}))
    return str(path)


@pytest.mark.slow
def test_supervisor_is_a_member_while_the_attempt_runs_and_after_a_restart_of_the_cache(
    daemon: Daemon, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = member(monkeypatch, daemon.socket_path)
    eventually("the address", cache.report)
    assert cache.report() == {"cacheAddress": address, "cacheExpires": 0}
    expires = int(time.time()) + 3600
    cache.follow(write_ticket(tmp_path / "ticket", 1, expires))
    eventually("a member", lambda: readers(daemon) == {"u-1": 1})
    assert cache.report() == {"cacheAddress": address, "cacheExpires": expires}
    daemon.kill()
    daemon.start()
    eventually("a member again", lambda: readers(daemon) == {"u-1": 1})
    cache.follow("")
    eventually("no member", lambda: readers(daemon) == {})
    assert cache.report() == {"cacheAddress": address, "cacheExpires": 0}


def test_renewed_ticket_replaces_the_file_at_once(tmp_path: Path) -> None:
    path = write_ticket(tmp_path / "ticket", 1, 1)
    replace_ticket(path, {"ticket": "new", "expires": 2})
    assert json.loads(Path(path).read_text()) == {"ticket": "new", "expires": 2}
    assert Path(path).stat().st_mode & 0o777 == 0o600
    cache = NodeCache("")
    cache.follow(path)
    assert cache._expires == 2


def test_pod_without_a_cache_has_no_thread_and_reports_nothing() -> None:
    cache = NodeCache("")
    cache.start()
    cache.join(10)
    assert not cache.is_alive()
    assert cache.report() == {}


@pytest.mark.slow
def test_absent_cache_is_waited_for(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = member(monkeypatch, str(tmp_path / "sockets" / "cache.sock"))
    assert cache.report() == {}
    with node_cache(tmp_path, "--size=1Gi", "--floor=0", f"--address={address}"):
        eventually("the address", cache.report)
    assert threading.active_count() > 1
