"""The data caches of an embedded cluster: when they start, and what they are started with."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from muster.api.cache_ticket import CACHE_CONFIG_MAP, TICKET_KEY
from muster.api.names import SYSTEM_NAMESPACE
from muster.embedded.caches import NodeCaches
from muster.embedded.kubelet.cachesocket import cache_sockets
from muster.embedded.layout import ClusterSpec, Layout
from muster.embedded.programs import Program
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.support.waiting import eventually, until


class Published:
    """The API server as the daemon asks it: it has the controller's ConfigMap after some requests."""

    def __init__(self, after: int) -> None:
        self.asked, self._after = 0, after

    async def get(self, kind: type[ConfigMap], name: str, namespace: str) -> ConfigMap:
        assert (kind, name, namespace) == (ConfigMap, CACHE_CONFIG_MAP, SYSTEM_NAMESPACE)
        self.asked += 1
        if self.asked <= self._after:
            raise NotFound("not there yet")
        return ConfigMap(metadata=ObjectMeta(name=name), data={TICKET_KEY: "the key"})


def cluster(folder: Path, **spec: Any) -> tuple[Layout, ClusterSpec]:
    return Layout(folder / "state"), ClusterSpec(nodes=3, cluster_id="c", **spec)


async def test_only_the_cache_of_a_node_whose_pod_asks_starts_and_with_the_controllers_key(tmp_path: Path) -> None:
    layout, spec = cluster(tmp_path, cache_size="3Gi")
    started: list[Program] = []
    client: Any = Published(after=2)
    task = asyncio.create_task(NodeCaches(layout, spec, started.append).run(client))
    await asyncio.sleep(0)
    assert (started, client.asked) == ([], 0)
    for node in ("node-2", "node-1"):
        layout.cache(node).sockets.mkdir(parents=True)
        await until(f"the cache of {node} starts", lambda node=node: started and started[-1].name == f"cache-{node}")
    assert client.asked == 3, "the key is read once"
    task.cancel()
    first, second = started
    options = dict(part.removeprefix("--").split("=", 1) for part in first.command if part.startswith("--"))
    address = options.pop("address")
    assert address.startswith("127.12.0.1:")
    assert int(address.rpartition(":")[2]) > 0
    assert await asyncio.to_thread(Path(options.pop("ticket-key")).read_text) == "the key"
    folders = layout.cache("node-2")
    assert options == {
        "node": "node-2",
        "state-dir": str(folders.blocks),
        "socket-dir": str(folders.sockets),
        "size": "3Gi",
        "floor": "5%",
    }
    assert any(part.startswith("--address=127.11.0.1:") for part in second.command)


async def test_no_cache_starts_in_a_cluster_without_caches(tmp_path: Path) -> None:
    layout, spec = cluster(tmp_path, cache_size="0")
    layout.cache("node-0").sockets.mkdir(parents=True)
    client: Any = Published(after=0)
    await asyncio.wait_for(NodeCaches(layout, spec, pytest.fail).run(client), 5)


def test_the_first_pod_waits_for_the_socket_and_later_ones_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def start_cache() -> None:
        eventually("the kubelet asks for the cache", folder.is_dir)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / "cache.sock"))

    daemon = threading.Thread(target=start_cache)
    daemon.start()
    assert cache_sockets(folder, start_s=1000) == folder
    assert (folder / "cache.sock").is_socket()
    daemon.join()
    (folder / "cache.sock").unlink()
    assert cache_sockets(folder, start_s=1000) == folder


def test_a_cache_that_does_not_start_does_not_hold_a_pod_back(tmp_path: Path) -> None:
    assert cache_sockets(tmp_path / "run", start_s=0.2) == tmp_path / "run"
