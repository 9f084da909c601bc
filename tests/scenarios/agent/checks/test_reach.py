"""The check `reach` in real network namespaces: three switches with three nodes each; a node and a switch are cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.fleet.health.mesh import Report, Verdict, judge
from muster.fleet.health.peers import Member
from tests.support.waiting import eventually

PORT = 9401
NODE = Path(__file__).with_name("reachnode.py")


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Fabric:
    """A namespace with a bridge for the spine and one for each switch, and a namespace for each node."""

    def __init__(self, folder: Path) -> None:
        self.name = f"reach-{os.getpid()}"
        self.members: list[Member] = []
        self.file = folder / "members.json"
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        self.now_s = 1_000_000.0
        self.unreached: dict[str, set[str]] = {}

    def build(self, switches: int, nodes: int) -> None:
        ip("netns", "add", self.name)
        self._in(self.name, "link", "add", "spine", "type", "bridge")
        self._in(self.name, "link", "set", "spine", "up")
        for switch in range(switches):
            self._in(self.name, "link", "add", f"s{switch}", "type", "bridge")
            self._in(self.name, "link", "set", f"s{switch}", "up")
            self._in(self.name, "link", "add", f"up{switch}", "type", "veth", "peer", "name", f"down{switch}")
            for end, bridge in ((f"up{switch}", f"s{switch}"), (f"down{switch}", "spine")):
                self._in(self.name, "link", "set", end, "master", bridge, "up")
            for number in range(nodes):
                self._node(switch, number)
        self.file.write_bytes(msgspec.json.encode(self.members))

    def _node(self, switch: int, number: int) -> None:
        node, address = f"n{switch}{number}", f"10.77.{switch}.{number + 1}"
        space = f"{self.name}-{node}"
        ip("netns", "add", space)
        ip("link", "add", node, "netns", self.name, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._in(self.name, "link", "set", node, "master", f"s{switch}", "up")
        self._in(space, "addr", "add", f"{address}/16", "dev", "eth0")
        self._in(space, "link", "set", "eth0", "up")
        self.members.append(Member(node, address, ("zone", f"s{switch}")))
        self.unreached[node] = set()

    def start(self) -> None:
        for member in self.members:
            command = ["ip", "netns", "exec", f"{self.name}-{member.name}", sys.executable, str(NODE)]
            self.nodes[member.name] = subprocess.Popen(
                [*command, member.name, str(self.file), str(PORT)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        for process in self.nodes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def link(self, name: str, state: str) -> None:
        self._in(self.name, "link", "set", name, state)

    def verdict(self) -> Verdict:
        """Let everybody look as often as it takes to be believed, and judge what they say then."""
        for unreached in self.unreached.values():
            unreached.clear()
        self.now_s += 1000
        for _ in range(2):
            self.now_s += 15
            for process in self.nodes.values():
                assert process.stdin is not None
                process.stdin.write(f"{self.now_s}\n")
                process.stdin.flush()
            for name, process in self.nodes.items():
                assert process.stdout is not None
                for component, code in json.loads(process.stdout.readline()):
                    assert code == "unreached"
                    self.unreached[name].add(component)
        reports = {
            name: Report(time_s=self.now_s, unreached=frozenset(each)) for name, each in self.unreached.items()
        }  # fmt: skip
        return judge(self.members, reports, self.now_s, fresh_s=60.0)

    def close(self) -> None:
        for process in self.nodes.values():
            process.kill()
            process.communicate()
        for space in (*(f"{self.name}-{member.name}" for member in self.members), self.name):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, timeout=60)

    @staticmethod
    def _in(space: str, *arguments: str) -> None:
        ip("-n", space, *arguments)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    probe = subprocess.run(["unshare", "--net", "ip", "link", "add", "spine", "type", "bridge"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"no network namespaces with bridges here: {probe.stderr.decode().strip()}")
    fabric = Fabric(tmp_path_factory.mktemp("fabric"))
    try:
        fabric.build(switches=3, nodes=3)
        fabric.start()
        yield fabric
    finally:
        fabric.close()


def test_a_network_that_is_well(fabric: Fabric) -> None:
    assert fabric.verdict() == Verdict()


def test_one_node_that_is_cut(fabric: Fabric) -> None:
    fabric.link("n11", "down")
    eventually("only that node is at fault", lambda: fabric.verdict() == Verdict(nodes=("n11",)))
    fabric.link("n11", "up")
    eventually("all is well", lambda: fabric.verdict() == Verdict())


def test_one_switch_that_is_cut(fabric: Fabric) -> None:
    fabric.link("up2", "down")
    eventually("only that switch is at fault", lambda: fabric.verdict() == Verdict(domains=("zone/s2",)))
    assert all(fabric.unreached[f"n2{number}"] for number in range(3))  # its own nodes miss the others
    fabric.link("up2", "up")
    eventually("all is well", lambda: fabric.verdict() == Verdict())


def test_stopped_agent_does_not_count_as_dead_node(fabric: Fabric) -> None:
    """Its kernel refuses connections, and so answers."""
    process = fabric.nodes.pop("n00")
    process.kill()
    process.communicate()
    assert fabric.verdict() == Verdict()
