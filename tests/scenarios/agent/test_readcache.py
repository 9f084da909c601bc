"""The agent's process through the read cache's process, and without it once that one is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.controlplane.children import Child
from tests.scenarios.agent.conftest import XID, Agents
from tests.support.apiserver import ApiServer
from tests.support.musterprogram import MUSTER
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

LINK = "mlx5_core 0000:5e:00.0 eth1: Link down"


class ReadCache:
    """A process of `muster readcache`."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._log = log
        command = [MUSTER, "readcache", "--listen=127.0.0.1:0", "--kind=nodes"]
        self.child = Child([*command, f"--kubeconfig={kubeconfig}"], log, dict(os.environ))
        self.url = eventually("the cache serves", lambda: self._said(r"serving on (http://[^\s]+)"))

    def _said(self, pattern: str) -> str:
        found = re.search(pattern, self._log.read_text())
        return found[1] if found else ""


@pytest.fixture
def read_cache(api_server: ApiServer, tmp_path: Path) -> Iterator[ReadCache]:
    cache = ReadCache(api_server.kubeconfig, tmp_path / "readcache.log")
    yield cache
    cache.child.stop(grace_s=2)


async def test_an_agent_writes_through_the_cache_and_to_the_api_server_once_the_cache_is_killed(
    agents: Agents, read_cache: ReadCache
) -> None:
    machine = await agents.machine()
    machine.say(XID)
    agent = await agents.start(machine, options=(f"--read-cache={read_cache.url}",))
    await agents.until_found(machine.node, "xid", "79")
    assert agent.said().count("is away") == 0
    os.kill(read_cache.child.pid, signal.SIGKILL)
    machine.say(LINK, at_s=200)
    await agents.until_found(machine.node, "nic", "link-down")
    assert agent.said().count("is away") == 1
