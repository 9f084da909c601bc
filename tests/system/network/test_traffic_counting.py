"""Every backend of traffic accounting on the kernel: real packets between network namespaces, counted to the byte."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from muster.network.traffic.backend import HOST, Backend, Count, CounterKey, CountersGone, Subject
from muster.network.traffic.classes import Classes
from tests.support.networknamespaces import Network, Node, connected, need_namespaces, transfer
from tests.support.trafficbackends import (
    CLASSES,
    INTERNAL,
    INTERNET4,
    INTERNET6,
    STORE,
    counted,
    datagrams,
    fresh,
    need_backend,
)

IN_RANGES, BESIDE_RANGES = ("172.16.0.7", "fd12::7"), ("172.217.0.7", "fec0::7")
"""Internal addresses, and others with the same first bytes."""
FIRST_BYTE6 = "2001:db8:a00::7"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A host with two pods, and peers of all classes outside."""
    need_namespaces("nft")
    with Network() as network:
        made = network.node(pods=2)
        for address in (INTERNET4, INTERNET6, STORE, INTERNAL, *IN_RANGES, *BESIDE_RANGES, FIRST_BYTE6):
            made.outside_address(address)
        yield made


@pytest.fixture(params=["nftables", "iptables-legacy"])
def backend(node: Node, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend that was set up, with nothing counted yet."""
    need_backend(request.param)
    made = fresh(request.param)
    node.host.call(made.setup, CLASSES)
    yield made
    node.host.call(made.teardown)


def pods(node: Node) -> list[Subject]:
    """Return a subject for each pod of the node."""
    return [Subject(f"uid-{number}", node.addresses(number)) for number in range(len(node.pods))]


def test_bytes_are_counted_per_pod_class_and_direction_in_both_families(node: Node, backend: Backend) -> None:
    """Two pods, three classes, both directions: to the byte, and nothing for the host."""
    node.host.call(backend.put, pods(node))
    first, second = node.pods
    four, six = node.addresses(0)
    sent4 = datagrams(first, node.outside, INTERNET4, 3)
    sent6 = datagrams(first, node.outside, INTERNET6, 4)
    store = datagrams(first, node.outside, STORE, 5)
    internal = datagrams(second, node.outside, INTERNAL, 6)
    down = datagrams(node.outside, first, four, 7) + datagrams(node.outside, first, six, 8)
    counts = node.host.call(backend.read)
    assert counted(counts) == {
        CounterKey("uid-0", "internet", "out"): sent4 + sent6,
        CounterKey("uid-0", "object-store", "out"): store,
        CounterKey("uid-1", "internal", "out"): internal,
        CounterKey("uid-0", "internet", "in"): down,  # from 192.0.2.2 and 2001:db8::2
    }
    assert counts[CounterKey("uid-0", "internet", "out")].packets == 7


def test_packets_between_pods_of_a_node_are_not_counted(node: Node, backend: Backend) -> None:
    """They cross no NIC."""
    node.host.call(backend.put, pods(node))
    datagrams(node.pods[0], node.pods[1], node.addresses(1)[0], 5)
    assert counted(node.host.call(backend.read)) == {}


def test_host_and_unknown_pods_are_in_the_row_of_the_host(node: Node, backend: Backend) -> None:
    """The host's own sockets, and a pod that no subject names."""
    node.host.call(backend.put, pods(node)[:1])
    own = datagrams(node.host, node.outside, INTERNET4, 3)
    unknown = datagrams(node.pods[1], node.outside, INTERNET6, 2)
    assert counted(node.host.call(backend.read)) == {CounterKey(HOST, "internet", "out"): own + unknown}


def test_counters_survive_the_agent_and_a_change_of_subjects(node: Node, backend: Backend) -> None:
    """A new backend without memory reads the same values, continues to count, and has the same instance."""
    node.host.call(backend.put, pods(node))
    before = datagrams(node.pods[0], node.outside, INTERNET4, 3)
    instance = node.host.call(backend.instance)
    other = fresh(backend.name)
    node.host.call(other.setup, CLASSES)
    assert node.host.call(other.put, pods(node)) == {}
    after = datagrams(node.pods[0], node.outside, INTERNET4, 4)
    assert counted(node.host.call(other.read)) == {CounterKey("uid-0", "internet", "out"): before + after}
    assert node.host.call(other.instance) == instance


def test_removed_subject_returns_its_last_count_and_the_address_begins_at_zero(node: Node, backend: Backend) -> None:
    """The address of an ended pod goes to the next pod in one change: none of its bytes are charged to it."""
    node.host.call(backend.put, pods(node))
    sent = datagrams(node.pods[0], node.outside, INTERNET4, 3)
    successor = [Subject("uid-next", node.addresses(0)), pods(node)[1]]
    final = node.host.call(backend.put, successor)
    assert counted(final) == {CounterKey("uid-0", "internet", "out"): sent}
    later = datagrams(node.pods[0], node.outside, INTERNET4, 1)
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-next", "internet", "out"): later}
    assert counted(node.host.call(backend.remove, ["uid-next"])) == {CounterKey("uid-next", "internet", "out"): later}
    assert not [key for key in node.host.call(backend.read) if key.subject == "uid-next"]


def test_classes_change_without_losing_a_count(node: Node, backend: Backend) -> None:
    """A new list takes its prefix from the internet; the class that is gone keeps what it counted."""
    node.host.call(backend.put, pods(node))
    store = datagrams(node.pods[0], node.outside, STORE, 2)
    internet = datagrams(node.pods[0], node.outside, INTERNET4, 3)
    node.host.call(backend.setup, Classes(lists={"partner": ["198.51.100.0/24"]}))
    partner = datagrams(node.pods[0], node.outside, INTERNET4, 4)
    more = datagrams(node.pods[0], node.outside, STORE, 5)
    expected = {
        CounterKey("uid-0", "object-store", "out"): store,
        CounterKey("uid-0", "internet", "out"): internet + more,
        CounterKey("uid-0", "partner", "out"): partner,
    }
    assert counted(node.host.call(backend.read)) == expected
    assert counted(node.host.call(backend.remove, ["uid-0"])) == expected


def test_flushed_rules_are_noticed(node: Node, backend: Backend) -> None:
    """Another program's flush raises; after setup the instance is another one, and counting works again."""
    node.host.call(backend.put, pods(node))
    instance = node.host.call(backend.instance)
    if backend.name == "nftables":
        node.host.run("nft", "flush", "ruleset")
    else:
        node.host.run("iptables-legacy", "-t", "mangle", "-F")
    with pytest.raises(CountersGone):
        node.host.call(backend.read)
    with pytest.raises(CountersGone):
        node.host.call(backend.instance)
    with pytest.raises(CountersGone):
        node.host.call(backend.put, pods(node))
    node.host.call(backend.setup, CLASSES)
    node.host.call(backend.put, pods(node))
    assert node.host.call(backend.instance) != instance
    sent = datagrams(node.pods[0], node.outside, INTERNET4, 1)
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-0", "internet", "out"): sent}


def test_packets_on_the_way_during_changes_are_counted_once(node: Node, backend: Backend) -> None:
    """An address changes hands again and again under load: all packets are some subject's or the host's."""
    sent = 0
    stop = threading.Event()

    def send() -> None:
        nonlocal sent
        with node.pods[0].socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect((INTERNET4, 9))
            while not stop.is_set():
                with contextlib.suppress(ConnectionRefusedError):  # nothing listens there
                    client.send(bytes(100))
                    sent += 1

    node.host.call(backend.put, [Subject("owner-0", node.addresses(0))])
    sender = threading.Thread(target=send)
    sender.start()
    finals: list[Mapping[CounterKey, Count]] = []
    changes = 20
    try:
        owners = ([Subject(f"owner-{number}", node.addresses(0))] for number in range(1, changes + 1))
        finals.extend(node.host.call(backend.put, owner) for owner in owners)
    finally:
        stop.set()
        sender.join()
    finals.append(node.host.call(backend.read))
    packets = sum(count.packets for counts in finals for key, count in counts.items() if key[1:] == ("internet", "out"))
    assert sent > 10 * changes
    in_flight = changes * (os.cpu_count() or 1)
    assert sent - in_flight <= packets <= sent


@pytest.mark.parametrize("chosen", [0, 1])
def test_service_is_classed_by_the_endpoint(node: Node, backend: Backend, chosen: int) -> None:
    """A cluster IP that leads to the internet, and one that leads to a pod elsewhere; replies are masqueraded back."""
    node.host.call(backend.put, pods(node))
    endpoint, cls = ((INTERNET4, "internet"), (INTERNAL, "internal"))[chosen]
    service = "10.96.0.1" if chosen == 0 else "198.51.100.200"  # its own class is the other one
    translated = f"ip daddr {service} udp dport 53 dnat to {endpoint}:5353"
    nat = f"""
        table ip nat {{
            chain before {{ type nat hook prerouting priority dstnat; {translated}; }}
            chain after {{ type nat hook postrouting priority srcnat; oifname eth0 masquerade; }}
        }}"""
    node.host.run("nft", "-f", "-", input=nat)
    udp = (socket.AF_INET, socket.SOCK_DGRAM)
    with node.outside.socket(*udp) as server, node.pods[0].socket(*udp) as client:
        server.bind((endpoint, 5353))
        client.connect((service, 53))
        client.send(bytes(100))
        _, peer = server.recvfrom(100)
        server.sendto(bytes(500), peer)
        assert peer[0] == "192.0.2.1"
        assert len(client.recv(500)) == 500
    node.host.run("nft", "delete", "table", "ip", "nat")
    assert counted(node.host.call(backend.read)) == {
        CounterKey("uid-0", cls, "out"): 128,
        CounterKey("uid-0", cls, "in"): 528,
    }


def test_opencost_1299_download_of_a_masqueraded_pod_is_the_pods(node: Node, backend: Backend) -> None:
    """The internet sees the node's address only, and yet no byte is charged to the node."""
    node.host.call(backend.put, pods(node))
    masquerade = "table ip nat { chain after { type nat hook postrouting priority srcnat; oifname eth0 masquerade; }; }"
    node.host.run("nft", "-f", "-", input=masquerade)
    with connected(node.outside, INTERNET4, node.pods[0]) as (server, client):
        assert server.getpeername()[0] == "192.0.2.1"
        transfer(server, client, 500_000)
    node.host.run("nft", "delete", "table", "ip", "nat")
    counts = counted(node.host.call(backend.read))
    assert counts.keys() == {CounterKey("uid-0", "internet", "in"), CounterKey("uid-0", "internet", "out")}
    assert counts[CounterKey("uid-0", "internet", "in")] > 500_000


def test_rejected_packets_are_counted_where_they_cross_the_nic(node: Node, backend: Backend) -> None:
    """What a policy drops on the way out never left."""
    node.host.call(backend.put, pods(node))
    policy = f"table ip drops {{ chain c {{ type filter hook forward priority filter; ip daddr {STORE} drop; }}; }}"
    node.host.run("nft", "-f", "-", input=policy)
    with node.pods[0].socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(bytes(100), (STORE, 9))
    sent = datagrams(node.pods[0], node.outside, INTERNET4, 1)
    node.host.run("nft", "delete", "table", "ip", "drops")
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-0", "internet", "out"): sent}


def test_many_prefixes_are_looked_up_in_a_map(node: Node, backend: Backend) -> None:
    """A provider's list of prefixes is longer than what is compared one after the other."""
    prefixes = [f"203.0.{number}.0/24" for number in range(0, 100, 2)] + ["203.0.113.0/29", "2001:db8:f::/64"]
    node.host.call(backend.setup, Classes(lists={"object-store": prefixes}))
    node.host.call(backend.put, pods(node))
    store = datagrams(node.pods[0], node.outside, INTERNET6, 2)
    internet = datagrams(node.pods[0], node.outside, STORE, 3)
    down = datagrams(node.outside, node.pods[0], node.addresses(0)[0], 1)
    assert counted(node.host.call(backend.read)) == {
        CounterKey("uid-0", "object-store", "out"): store,
        CounterKey("uid-0", "internet", "out"): internet,
        CounterKey("uid-0", "internet", "in"): down,
    }


def test_peers_beside_a_range_with_its_first_byte_are_not_of_its_class(node: Node, backend: Backend) -> None:
    """The first byte of an address rules out ranges, and never decides for one."""
    node.host.call(backend.put, pods(node))
    pod = node.pods[0]
    internal = sum(datagrams(pod, node.outside, address, 2) for address in IN_RANGES)
    internet = sum(datagrams(pod, node.outside, address, 3) for address in BESIDE_RANGES)
    assert counted(node.host.call(backend.read)) == {
        CounterKey("uid-0", "internal", "out"): internal,
        CounterKey("uid-0", "internet", "out"): internet,
    }


def test_ipv6_addresses_that_hold_a_first_byte_of_ipv4_ranges_are_counted(node: Node, backend: Backend) -> None:
    """The bytes of an IPv6 source that lie where an IPv4 packet has its peer begin with 10."""
    peer, own = FIRST_BYTE6, "fd00:1:0:0:a00::5"
    node.pods[0].run("ip", "address", "add", f"{own}/128", "dev", "eth0", "nodad")
    node.host.run("ip", "route", "add", f"{own}/128", "dev", "pod0")
    node.host.call(backend.put, [Subject("uid-0", (own,))])
    udp = (socket.AF_INET6, socket.SOCK_DGRAM)
    with node.pods[0].socket(*udp) as client, node.outside.socket(*udp) as server:
        client.bind((own, 5353))
        server.bind((peer, 5353))
        client.sendto(bytes(100), (peer, 5353))
        assert len(server.recv(100)) == 100
        server.sendto(bytes(500), (own, 5353))
        assert len(client.recv(500)) == 500
    node.pods[0].run("ip", "address", "delete", f"{own}/128", "dev", "eth0")
    node.host.run("ip", "route", "delete", f"{own}/128", "dev", "pod0")
    assert counted(node.host.call(backend.read)) == {
        CounterKey("uid-0", "internet", "out"): 148,
        CounterKey("uid-0", "internet", "in"): 548,
    }


def test_link_that_is_made_again_is_counted_from_the_next_reading(backend: Backend) -> None:
    """A driver was loaded again: the link has its name and another number."""
    with Network() as network:
        node = network.node(pods=1)
        made = fresh(backend.name)
        node.host.call(made.setup, CLASSES)
        node.host.call(made.put, pods(node))
        node.host.run("ip", "link", "delete", "eth0")
        assert counted(node.host.call(made.read)) == {}
        network.veth(node.host, "eth0", node.outside, "eth0")
        node.host.run("ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
        node.outside.run("ip", "address", "add", "192.0.2.2/24", "dev", "eth0")
        node.outside.run("ip", "route", "add", "default", "via", "192.0.2.1")
        node.host.call(made.read)
        sent = datagrams(node.pods[0], node.outside, "192.0.2.2", 2)
        assert counted(node.host.call(made.read)) == {CounterKey("uid-0", "internet", "out"): sent}


@pytest.mark.parametrize("where", ["pod", "host", "outside"])
def test_service_of_the_host_is_classed_by_the_endpoint(node: Node, backend: Backend, where: str) -> None:
    """The host calls a Service. An endpoint that is a pod of this node, or the host itself, is not across the NIC."""
    node.host.call(backend.put, pods(node))
    endpoint, receiver = {
        "pod": (node.addresses(0)[0], node.pods[0]),
        "host": ("192.0.2.1", node.host),
        "outside": (INTERNAL, node.outside),
    }[where]
    service = "198.51.100.200"
    translated = f"ip daddr {service} udp dport 53 dnat to {endpoint}:5353"
    nat = f"table ip nat {{ chain c {{ type nat hook output priority -100; {translated}; }}; }}"
    node.host.run("nft", "-f", "-", input=nat)
    udp = (socket.AF_INET, socket.SOCK_DGRAM)
    with receiver.socket(*udp) as server, node.host.socket(*udp) as client:
        server.bind((endpoint, 5353))
        client.connect((service, 53))
        client.send(bytes(1300))
        _, peer = server.recvfrom(1300)
        server.sendto(bytes(1400), peer)
        assert len(client.recv(1400)) == 1400
    node.host.run("nft", "delete", "table", "ip", "nat")
    counts = node.host.call(backend.read)
    internal = {direction: counts[CounterKey(HOST, "internal", direction)] for direction in ("in", "out")}
    assert counted(counts) == {}
    assert (internal["out"].bytes >= 1328, internal["in"].bytes >= 1428) == (where == "outside",) * 2


@pytest.mark.parametrize("command", ["flush table inet muster_traffic", "flush chain inet muster_traffic prerouting"])
def test_rules_that_another_program_flushes_are_noticed_and_come_back(node: Node, command: str) -> None:
    """The sets and their counters stay then, so without a look at the rules all would seem well."""
    made = fresh("nftables")
    node.host.call(made.setup, CLASSES)
    node.host.call(made.put, pods(node))
    address = node.addresses(0)[0]
    down = datagrams(node.outside, node.pods[0], address, 2)
    instance = node.host.call(made.instance)
    node.host.run("nft", *command.split())
    with pytest.raises(CountersGone, match="another program changed the rules"):
        node.host.call(made.read)
    node.host.call(made.setup, CLASSES)
    more = datagrams(node.outside, node.pods[0], address, 3)
    total = node.host.call(made.read)[CounterKey("uid-0", "internet", "in")].bytes
    assert (total, node.host.call(made.instance)) == (down + more, instance)
    node.host.call(made.teardown)


_FORMER_RULES = """
    table inet muster_traffic {
        set v4_out_internal { type ipv4_addr; counter; }
        set v4_out_internet { type ipv4_addr; counter; elements = { 10.1.0.10 comment "uid-0" }; }
        set rest_out_internet { type nf_proto; counter; elements = { ipv4 comment "host" }; }
        chain forward_internal { ip saddr @v4_out_internal return; }
        chain forward_internet { ip saddr @v4_out_internet return; meta nfproto @rest_out_internet; }
        chain class4_forward { ip daddr 10.0.0.0/8 goto forward_internal; goto forward_internet; }
        chain forward { type filter hook forward priority 300; oif "eth0" goto class4_forward; }
    }
"""
"""The sets and rules of agents that compared each packet with all ranges, as far as this test needs them."""


def test_bytes_that_an_agent_with_other_rules_counted_are_kept(node: Node) -> None:
    """An agent is replaced by a newer one while a pod runs."""
    node.host.run("nft", "-f", "-", input=_FORMER_RULES)
    before = datagrams(node.pods[0], node.outside, INTERNET4, 3)
    made = fresh("nftables")
    instance = node.host.call(made.instance)
    node.host.call(made.setup, CLASSES)
    between = datagrams(node.pods[0], node.outside, INTERNET4, 1)
    assert node.host.call(made.put, pods(node)) == {}
    after = datagrams(node.pods[0], node.outside, INTERNET4, 5)
    counts = node.host.call(made.read)
    assert counted(counts) == {CounterKey("uid-0", "internet", "out"): before + between + after}
    assert counts[CounterKey("uid-0", "internet", "out")].packets == 9
    assert node.host.call(made.instance) == instance
    node.host.call(made.teardown)


def test_many_pods_are_put_at_once(node: Node) -> None:
    """More than a netlink socket's usual send buffer holds: an agent's first pass, or the one after a flush."""
    made = fresh("nftables")
    node.host.call(made.setup, CLASSES)
    subjects = [Subject(f"uid-{number}", (f"10.9.{number // 250}.{number % 250}",)) for number in range(3000)]
    node.host.call(made.put, subjects)
    counts = node.host.call(made.read)
    assert {f"uid-{number}" for number in range(3000)} < {key.subject for key in counts}
    node.host.call(made.teardown)
