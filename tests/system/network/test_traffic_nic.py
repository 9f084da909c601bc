"""All rows together against the counters of the NIC, with offloads, tunnels and both families.

The goal is 1%. Where nothing else moves the error is far smaller, so the tests ask for 0.2%.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator, Mapping

import pytest

from muster.network.traffic.backend import INNER, IPV6, OUTER, TUNNEL, Backend, Count, CounterKey, Direction, Subject
from muster.network.traffic.interfaces import Interfaces
from muster.network.traffic.overhead import overhead_bytes
from tests.support.networknamespaces import Namespace, Network, Node, connected, need_namespaces, transfer
from tests.support.trafficbackends import CLASSES, INTERNET4, INTERNET6, fresh, need_backend

SIZE = 4_000_000
LINKS: tuple[tuple[Direction, str], ...] = (("in", "rx"), ("out", "tx"))
_SIOCETHTOOL = 0x8946
_SET_TSO, _SET_GRO = 0x1F, 0x2C


def offload(namespace: Namespace, link: str, command: int, value: int) -> None:
    """Switch an offload of a link, as ethtool does."""

    def set_() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            data = ctypes.create_string_buffer(struct.pack("=II", command, value))
            fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sQ16x", link.encode(), ctypes.addressof(data)))

    namespace.call(set_)


@pytest.fixture
def node() -> Iterator[Node]:
    """A host with one pod, whose link to the outside splits and merges segments as a NIC does.

    The wire has packets of 1,500 bytes: each end splits large segments before it sends, and merges received packets.
    """
    need_namespaces()
    with Network() as network:
        made = network.node(pods=1)
        for address in (INTERNET4, INTERNET6):
            made.outside_address(address)
        for end in (made.host, made.outside):
            offload(end, "eth0", _SET_TSO, 0)
            offload(end, "eth0", _SET_GRO, 1)
        yield made


@pytest.mark.parametrize("name", ["nftables", "iptables-legacy"])
@pytest.mark.parametrize("address", [INTERNET4, INTERNET6])
def test_rows_and_overhead_agree_with_the_nic_within_one_percent(node: Node, name: str, address: str) -> None:
    """A pod moves data both ways; the kernel's stack sees segments of up to 64 KiB."""
    need_backend(name)
    backend = fresh(name)
    node.host.call(backend.setup, CLASSES)
    node.host.call(backend.put, [Subject("uid-0", node.addresses(0))])
    before = node.host.counters("eth0")
    with connected(node.outside, address, node.pods[0]) as (server, client):
        transfer(client, server, SIZE)
        transfer(server, client, SIZE)
    counts = node.host.call(backend.read)
    after = node.host.counters("eth0")
    for direction, link in LINKS:
        wire = after[f"{link}_packets"] - before[f"{link}_packets"]
        rows = sum_of(counts, direction)
        assert wire > 2 * rows.packets, "the stack did not see merged segments"
        ipv6 = counts[CounterKey(TUNNEL, IPV6, direction)].bytes / rows.bytes
        assert ipv6 > 0.99 if ":" in address else ipv6 < 0.01
        # a veth that merges counts without the Ethernet header, unlike a NIC
        estimate = rows.bytes + overhead_bytes(rows.packets, wire, ipv6, link_header_bytes=0)
        assert estimate == pytest.approx(after[f"{link}_bytes"] - before[f"{link}_bytes"], rel=0.002)


def sum_of(counts: Mapping[CounterKey, Count], direction: str) -> Count:
    """Return the sum of the rows of a direction."""
    total = Count(0, 0)
    for key, count in counts.items():
        if key.direction == direction and key.subject != TUNNEL:
            total = total.plus(count)
    return total


@pytest.mark.parametrize("name", ["nftables", "iptables-legacy"])
def test_packets_in_a_tunnel_are_the_pods_and_their_envelopes_are_apart(name: str) -> None:
    """VXLAN of an overlay CNI: nothing is counted twice, and rows with envelopes agree with the NIC."""
    need_backend(name)
    with Network() as network:
        node = network.node(pods=1)
        for end, peer, inner in ((node.host, "192.0.2.2", "10.1.255.1"), (node.outside, "192.0.2.1", "10.1.255.2")):
            vxlan = f"link add flannel.1 mtu 1450 type vxlan id 1 dstport 8472 dev eth0 remote {peer}"
            end.run("ip", "-batch", "-", input=vxlan)
            end.run("ip", "address", "add", f"{inner}/24", "dev", "flannel.1")
            end.run("ip", "link", "set", "flannel.1", "up")
        node.outside.run("ip", "route", "add", node.addresses(0)[0], "via", "10.1.255.1")
        backend: Backend = fresh(name, Interfaces(("eth0",), ("flannel.1",)))
        node.host.call(backend.setup, CLASSES)
        node.host.call(backend.put, [Subject("uid-0", node.addresses(0))])
        before, inner_before = node.host.counters("eth0"), node.host.counters("flannel.1")
        with connected(node.outside, "10.1.255.2", node.pods[0]) as (server, client):
            transfer(client, server, SIZE)
            transfer(server, client, SIZE)
        counts = node.host.call(backend.read)
        after, inner_after = node.host.counters("eth0"), node.host.counters("flannel.1")
        for direction, link in LINKS:
            assert inner_after[f"{link}_bytes"] - inner_before[f"{link}_bytes"] > SIZE
            pod = counts[CounterKey("uid-0", "internal", direction)]
            assert pod.bytes > SIZE
            rows = sum_of(counts, direction)
            assert rows.bytes < pod.bytes * 1.01, "the envelopes were counted too"
            envelopes = counts[CounterKey(TUNNEL, OUTER, direction)].bytes
            envelopes -= counts[CounterKey(TUNNEL, INNER, direction)].bytes
            wire = after[f"{link}_packets"] - before[f"{link}_packets"]
            estimate = rows.bytes + envelopes + overhead_bytes(rows.packets, wire)
            assert estimate == pytest.approx(after[f"{link}_bytes"] - before[f"{link}_bytes"], rel=0.002)


@pytest.mark.parametrize("name", ["nftables", "iptables-legacy"])
@pytest.mark.parametrize("protocol", [4, 47])
def test_envelopes_are_the_hosts_and_a_pods_own_packets_of_the_kind_are_the_pods(name: str, protocol: int) -> None:
    """IPIP and GRE, both directions; a pod may run a tunnel of its own."""
    need_backend(name)
    with Network() as network:
        node = network.node(pods=1)
        node.host.run("ip", "link", "add", "flannel.1", "type", "vxlan", "id", "1", "dstport", "8472", "dev", "eth0")
        backend = fresh(name, Interfaces(("eth0",), ("flannel.1",)))
        node.host.call(backend.setup, CLASSES)
        node.host.call(backend.put, [Subject("uid-0", node.addresses(0))])
        pod, four = node.pods[0], node.addresses(0)[0]
        for sender, receiver, address, size in (
            (node.host, node.outside, "192.0.2.2", 100),
            (node.outside, node.host, "192.0.2.1", 200),
            (pod, node.outside, "192.0.2.2", 300),
            (node.outside, pod, four, 400),
        ):
            raw = (socket.AF_INET, socket.SOCK_RAW, protocol)
            with sender.socket(*raw) as client, receiver.socket(*raw) as server:
                client.sendto(bytes(size), (address, 0))
                server.recv(size + 20)
        counts = node.host.call(backend.read)
        seen = {key: count.bytes for key, count in counts.items() if key.subject in ("uid-0", TUNNEL) and count.bytes}
        seen = {key: size for key, size in seen.items() if key.cls != IPV6}
        assert seen == {
            CounterKey(TUNNEL, OUTER, "out"): 120,
            CounterKey(TUNNEL, OUTER, "in"): 220,
            CounterKey("uid-0", "internet", "out"): 320,
            CounterKey("uid-0", "internet", "in"): 420,
        }
