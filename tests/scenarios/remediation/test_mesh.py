"""The mesh, end to end: agents look at each other, write what they miss, and the controller says who is at fault.

A node that is cut off is an address at which nothing answers: its queue of connections is full.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from muster.api.names import LABEL_RACK
from muster.controlplane.ports import free_port
from muster.fleet.remediation.decide import HARDWARE
from muster.fleet.remediation.evidence import mesh
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.node import Node
from tests.scenarios.agent.conftest import Agents, Machine, account_of_agents
from tests.scenarios.remediation.conftest import Ward
from tests.support.anyserver import BY_REMEDIATION
from tests.support.loopback import loopback_subnet
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CHECK = "reach=tests.scenarios.remediation.hastyreach:make"
RACKS = ("a", "b", "c")


@contextlib.contextmanager
def cut_off(address: str, port: int) -> Iterator[None]:
    """Have nothing answer there: who connects is neither let in nor refused (listen(2), a full backlog)."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((address, port))
        listening.listen(0)
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((address, port))
        yield


class Mesh:
    """Three racks of two nodes; agents run where they are started."""

    def __init__(self, ward: Ward, agents: Agents, folder: Path) -> None:
        self.ward, self._agents, self._folder = ward, agents, folder
        self._subnet = loopback_subnet()
        self.port = free_port()
        self.members = folder / "members.json"
        self.nodes: dict[str, str] = {}
        """Names of nodes, by rack and number: `a0`."""

    async def build(self) -> None:
        names = await self.ward.add_nodes(2 * len(RACKS))
        for number, name in enumerate(names):
            place = f"{RACKS[number // 2]}{number % 2}"
            self.nodes[place] = name
            await self.ward.client.patch(Node, name, {"metadata": {"labels": {LABEL_RACK: place[0]}}})
            status = {"status": {"addresses": [{"type": "InternalIP", "address": self.address(place)}]}}
            await self.ward.client.patch(Node, name, status, subresource="status")

    def address(self, place: str) -> str:
        return f"{self._subnet}.{1 + RACKS.index(place[0]) * 2 + int(place[1])}"

    async def mount(self) -> None:
        """Have the list where kubelets put it for agents, once all nodes stand in it."""

        async def listed() -> str:
            try:
                found = await self.ward.client.get(ConfigMap, mesh.CONFIG_MAP, self.ward.namespace)
            except NotFound:
                return ""
            text = found.data.get(mesh.KEY, "")
            whole = all(f'"{name}","address"' in text for name in self.nodes.values())
            return text if whole and text.count('"domains":["') >= len(self.nodes) else ""

        self.members.write_text(await until("the controller says who is there", listed))

    async def start(self, *places: str) -> None:
        for place in places:
            options = {"membersFile": str(self.members), "port": self.port}
            checks = {"kernel-log": {"enabled": False}, "reach": {"options": options, "periodSeconds": 0.5}}
            machine = Machine(self._folder / place, self.nodes[place], {"checks": checks})
            await self._agents.start(machine, CHECK)

    async def condition(self, place: str) -> str:
        node = await self.ward.client.get(Node, self.nodes[place])
        said = (each.message for each in node.status.conditions if each.type == HARDWARE and each.status == "True")
        return next(said, "")


@pytest.fixture
async def fabric(ward: Ward, cluster_config: ClusterConfig, tmp_path: Path) -> AsyncIterator[Mesh]:
    await account_of_agents(ward.client, ward.namespace)
    agents = Agents(ward.client, cluster_config, ward.namespace, tmp_path)
    made = Mesh(ward, agents, tmp_path)
    try:
        await made.build()
        await ward.configure()
        ward.start()
        await made.mount()
        yield made
    finally:
        await agents.end()


@BY_REMEDIATION
async def test_switch_fault_is_reported_and_takes_no_node_out_of_use(fabric: Mesh) -> None:
    ward, behind = fabric.ward, ("c0", "c1")
    with cut_off(fabric.address("c0"), fabric.port), cut_off(fabric.address("c1"), fabric.port):
        await fabric.start("a0", "a1", "b0", "b1")

        async def said() -> bool:
            return all("switch" in text for text in [await fabric.condition(place) for place in behind])

        await until("both nodes are said to be behind a switch", said)
        for place in behind:
            await ward.until_rung(fabric.nodes[place], "Condition")

        async def reported() -> bool:
            events = (await ward.client.list(Event, "default")).items
            about = {each.involved_object.name for each in events if each.reason == "RemediationCondition"}
            return {fabric.nodes[place] for place in behind} <= about

        await until("operators see the Event", reported)
        assert await ward.out_of_use() == set(), "it is not their fault"


@BY_REMEDIATION
async def test_a_node_that_several_agents_miss_goes_out_of_use_alone(
    fabric: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "SETTLE_S", 1.0)
    ward, gone = fabric.ward, fabric.nodes["c0"]
    with cut_off(fabric.address("c0"), fabric.port):
        await fabric.start("a0", "b0", "c1")  # the last two look at it: from its own rack, and from another one
        session = await ward.until_rung(gone, "Quarantine")
        assert "reach/node" in str(session.status.history)
        await ward.until_out_of_use(gone)
    assert await ward.rung(fabric.nodes["c1"]) == ""
