"""The network cards of a node on the real kernel: with a device, named, or with a default route."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.localpods.interfaces import Interfaces
from muster.network.traffic.interfaces import detect
from muster.network.traffic.uplink import read_interfaces
from tests.support.networknamespaces import Network, Node, connected, need_namespaces, transfer
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces()
    with Network() as network:
        yield network.node(pods=1)


def names(node: Node, *wanted: str, sys_root: Path = Path("/nowhere")) -> list[str]:
    return [each.name for each in node.host.call(read_interfaces, wanted, sys_root)]


def test_node_that_is_a_container_has_the_links_with_a_default_route(node: Node) -> None:
    assert names(node) == ["eth0"]
    node.host.run("ip", "route", "add", "default", "dev", "pod0", "table", "77")
    assert sorted(names(node)) == ["eth0", "pod0"], "a further card has its route in a table of its own"
    node.host.run("ip", "route", "delete", "default", "dev", "pod0", "table", "77")


def test_cards_are_the_links_with_a_device_also_without_a_route(node: Node, tmp_path: Path) -> None:
    (tmp_path / "class/net/pod0/device").mkdir(parents=True)
    assert names(node, sys_root=tmp_path) == ["pod0"]


def test_named_links_count_and_missing_ones_are_left_out(node: Node) -> None:
    assert names(node, "pod0", "gone0") == ["pod0"]


def test_counters_are_those_of_the_kernel(node: Node) -> None:
    (before,) = node.host.call(read_interfaces, ("eth0",))
    with connected(node.outside, "192.0.2.2", node.host) as (server, client):
        transfer(client, server, 100_000)

    def equal() -> int:  # a packet of the kernel's own, such as a router solicitation, may come between both readings
        (after,) = node.host.call(read_interfaces, ("eth0",))
        counted = node.host.counters("eth0")
        same_bytes = (after.in_bytes, after.out_bytes) == (counted["rx_bytes"], counted["tx_bytes"])
        same_packets = (after.in_packets, after.out_packets) == (counted["rx_packets"], counted["tx_packets"])
        return after.out_bytes if same_bytes and same_packets else 0

    assert eventually("both read the same", equal) - before.out_bytes >= 100_000


def test_link_with_a_name_that_firewalls_misread_stops_nothing(node: Node) -> None:
    """A pod with NET_ADMIN can put a link into the host's namespace. Its name may hold any bytes but `/` and spaces."""
    kind = ("type", "vxlan", "id", "7", "dstport", "4789", "dev", "eth0")
    for name in ('v";accept', "v+", os.fsdecode(b"v\xff\xfe"), "vxlan.7"):
        node.host.run("ip", "link", "add", "fresh", *kind)
        node.host.run("ip", "link", "set", "fresh", "name", name)
        assert node.host.call(detect).tunnels == tuple({name} & {"vxlan.7"})
        assert names(node, "eth0") == ["eth0"]
        assert node.host.call(Interfaces().of_addresses, node.addresses(0)) == "pod0"
        node.host.run("ip", "link", "delete", name)
