"""Many ADDs and DELs at once while the daemon is killed: no leak, no duplicate, and no lock that is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from muster.network.cni.errors import Code
from tests.support.cninode import CniFailed, CniNode, cni_node
from tests.support.networknamespaces import Namespace, need_namespaces
from tests.support.waiting import eventually

_PODS = 12
_TURNS = 8
_KILLS = 2
_RETRY_S = 0.05
_DAEMON = """
import signal, sys
from pathlib import Path
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.block import Family
from muster.network.addresses.bootclock import BootClock
from muster.network.cni.answers import answer
from muster.network.cni.interfaces.kinds import make_kinds
from muster.network.cni.operations import Operations
from muster.network.cni.server import CniServer

folder = Path(sys.argv[1])
store = Addresses(folder / "addresses", BootClock(), families=tuple(Family), cooldown_s=0.0)
operations = Operations(store, make_kinds())
CniServer(folder / "cni.sock", lambda asked: answer(operations, asked)).start()
print("started", flush=True)
signal.pause()
"""


class Daemons:
    """The daemon as a process, and its successors."""

    def __init__(self, node: CniNode) -> None:
        self._node = node
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._node.node.host.argv(sys.executable, "-c", _DAEMON, str(self._node.folder)),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    def replace(self) -> None:
        self.end()
        self.process = self._start()

    def end(self) -> None:
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(timeout=30)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CniNode]:
    need_namespaces()
    with cni_node(tmp_path / "cni", cooldown_s=0.0) as made:
        yield made


@contextlib.contextmanager
def daemons(node: CniNode) -> Iterator[Daemons]:
    """The daemon as a process in place of the one in threads, which knows afterwards what is on the disk."""
    node.stop()
    running = Daemons(node)
    try:
        yield running
    finally:
        running.end()
        node.restart()


def insist(node: CniNode, verb: str, pod: Namespace | str, container: str) -> dict[str, Any]:
    """Repeat a request until it has an answer, as a runtime does."""
    deadline_s = time.monotonic() + 60.0
    while True:
        try:
            return node.plugin(verb, pod, container)
        except CniFailed as error:
            if error.code != Code.TRY_AGAIN_LATER or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)


def test_kills_of_the_daemon_during_adds_and_dels_in_random_order_leave_no_leak_and_no_duplicate(node: CniNode) -> None:
    chance = random.Random(16)
    pods = [node.network.namespace(f"p{number}") for number in range(_PODS)]
    seeds = [chance.random() for _ in pods]

    def live(number: int) -> set[str] | None:
        own = random.Random(seeds[number])
        has: set[str] | None = None
        for _ in range(_TURNS):
            verb = own.choice(("ADD", "DEL"))
            answer = insist(node, verb, own.choice((pods[number], "")) if verb == "DEL" else pods[number], f"s{number}")
            has = {each["address"].partition("/")[0] for each in answer["ips"]} if verb == "ADD" else None
        return has

    with daemons(node) as running, ThreadPoolExecutor(_PODS) as pool:
        lives = [pool.submit(live, number) for number in range(_PODS)]
        for _ in range(_KILLS):
            wait(lives, chance.uniform(0.02, 0.1))
            assert not all(each.done() for each in lives), "the daemon was not killed during requests"
            running.replace()
    answered = {number: each.result() for number, each in enumerate(lives)}
    have = {number: addresses for number, addresses in answered.items() if addresses is not None}
    assert have
    assert {each.key.container_id: {address.ip for address in each.addresses} for each in node.store.all()} == {
        f"s{number}": addresses for number, addresses in have.items()
    }
    given = [ip for addresses in have.values() for ip in addresses]
    assert len(given) == len(set(given)) == 2 * len(have)
    assert len(node.links()) == len(have)
    for number, pod in enumerate(pods):
        shown = json.loads(pod.run("ip", "-j", "address", "show", "scope", "global"))
        inside = {address["local"] for each in shown for address in each.get("addr_info", ()) if "local" in address}
        assert inside == have.get(number, set())


def test_azure_container_networking_464_killed_plugins_and_daemons_leave_no_lock_behind(node: CniNode) -> None:
    pod = node.network.namespace("pod")
    with daemons(node) as running:
        os.kill(running.process.pid, signal.SIGSTOP)  # a loaded node: the daemon holds its lock and does not answer
        conf = {"cniVersion": "1.0.0", "name": "pods", "socket": str(node.socket)}
        plugins = []
        for verb in ("ADD", "DEL"):
            process = subprocess.Popen(
                node.node.host.argv(str(node.plugins / "muster-cni")),
                stdin=subprocess.PIPE,
                env={"CNI_COMMAND": verb, "CNI_CONTAINERID": "s464", "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"},
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(conf).encode())
            process.stdin.close()
            plugins.append(process)
        eventually("the plugins wait", lambda: all(_waits(each.pid) for each in plugins))
        for process in plugins:
            process.kill()
            process.wait(timeout=30)
        running.replace()
        result = node.plugin("ADD", pod, "s464")
        node.plugin("CHECK", pod, "s464", prevResult=result)
        node.plugin("DEL", pod, "s464")
    assert node.store.all() == ()
    assert node.links() == []


def _waits(pid: int) -> bool:
    """Whether a process waits for data of a Unix socket."""
    sockets = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since: the program is still starting
            sockets += os.readlink(each).startswith("socket:")
    return sockets >= 2  # of netlink, and the daemon's
