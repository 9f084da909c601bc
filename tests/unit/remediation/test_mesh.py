"""What agents say of each other is about a machine, not about a name."""

from __future__ import annotations

import asyncio
import contextlib

from muster.fleet.remediation.evidence.mesh import members_of
from muster.kube.errors import ApiError
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeAddress, NodeStatus
from tests.unit.remediation.virtualward import OPEN, VirtualWard

NAMES = [f"n{number}" for number in range(8)]


def test_recreated_node_is_not_blamed_for_reports_about_its_predecessor() -> None:
    ward = VirtualWard(f"{OPEN}dead: {{enabled: false}}\n")
    for name in NAMES:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in NAMES[1:]:
            ward.finds(name, "unreached", "reach", "n0", timed=True)
        await ward.until("it is out of use", lambda: ward.out_of_use() == {"n0"}, 60)
        ward.call("DELETE", "/api/v1/nodes/n0")
        await asyncio.sleep(1.5)  # sooner than the mesh is judged again
        ward.add_node("n0")
        for _ in range(60):
            await asyncio.sleep(1)
            assert not ward.out_of_use()

    ward.run(story)


def test_recreated_node_is_not_blamed_in_the_second_its_predecessor_was_missed() -> None:
    ward = VirtualWard(f"{OPEN}dead: {{enabled: false}}\n")
    for name in NAMES:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        ward.call("DELETE", "/api/v1/nodes/n0")
        for name in NAMES[1:]:
            ward.finds(name, "unreached", "reach", "n0", timed=True)
        ward.add_node("n0")
        for _ in range(60):
            await asyncio.sleep(1)
            assert not ward.out_of_use()

    ward.run(story)


def test_recreated_node_is_not_dead_by_reports_about_its_predecessor() -> None:
    """Its kubelet has not renewed its Lease yet."""
    ward = VirtualWard(OPEN)
    for name in NAMES[:4]:
        ward.add_node(name)
        ward.renews(name)

    async def story() -> None:
        await asyncio.sleep(2)
        ward.call("DELETE", "/api/v1/nodes/n0")
        for name in NAMES[1:4]:
            ward.finds(name, "unreached", "reach", "n0")
        await asyncio.sleep(5)
        ward.add_node("n0")
        for _ in range(60):
            await asyncio.sleep(1)
            for name in NAMES[1:4]:
                with contextlib.suppress(ApiError):
                    ward.renews(name)
            assert not ward.out_of_use()

    ward.run(story)


def test_only_nodes_with_an_ip_address_are_probed() -> None:
    """Otherwise all their peers would report them, as agents do not resolve names."""
    given = {"dual": ("10.0.0.1", "fd00::1"), "late": ("node.example", "10.0.0.2"), "name": ("node.example",), "no": ()}
    nodes = [
        Node(
            metadata=ObjectMeta(name=name),
            status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=each) for each in addresses)),
        )
        for name, addresses in given.items()
    ]
    assert {each.name: each.address for each in members_of(nodes)} == {"dual": "10.0.0.1", "late": "10.0.0.2"}
