"""Checks of a node's network against the real kernel, in network namespaces of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from muster.network.agent.part import HostPaths
from muster.network.agent.parts import make_parts
from muster.network.checks.node.allowances import driver_counters, read_allowances
from muster.network.checks.node.dnsprobe import lost_answers
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.node.examine import examine
from muster.network.checks.node.pathprobe import PathAnswer, probe
from muster.network.checks.node.probed import find_paths
from muster.network.checks.node.read import NodePaths, read_node
from muster.network.checks.page import ChecksPage
from muster.network.checks.part import ChecksPart
from muster.network.config import parse_config
from muster.network.netlink.neighbour import count_permanent
from muster.network.netlink.socket import ROUTE, NetlinkSocket
from tests.support.networknamespaces import Namespace, Network, connected, need_namespaces, transfer
from tests.support.networkparts import part_setup
from tests.support.networkproc import CONNTRACK, NEIGHBOURS
from tests.support.waiting import eventually

HERE = NodePaths(Path("/proc/thread-self/net"))


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    need_namespaces()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


def read(namespace: Namespace) -> NodeEvidence:
    return namespace.call(read_node, HERE)


def codes(now: NodeEvidence, before: NodeEvidence | None = None) -> list[tuple[str, str, str]]:
    return [(each.check, each.code, each.component) for each in examine(now, before, Settings())]


def test_kernel_has_the_columns_that_the_rules_read() -> None:
    """The fake files of the other tests have the format of this kernel."""
    for name, columns in (("nf_conntrack", CONNTRACK), ("arp_cache", NEIGHBOURS), ("ndisc_cache", NEIGHBOURS)):
        file = Path("/proc/net/stat", name)
        if file.exists():
            assert tuple(file.read_text().splitlines()[0].split()) == columns


def test_machine_is_read_without_capabilities() -> None:
    """As the node agent does: another user, no capability. Only reads."""
    if os.geteuid() != 0:
        assert read_node(NodePaths()).unread == ()
        return
    readers, writers = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = read_node(NodePaths())
            good = found.links and found.neighbours and found.unread == () and found.ports
            os.write(writers, b"yes" if good else repr(found).encode())
        os._exit(0)
    os.close(writers)
    with os.fdopen(readers, "rb") as answer:
        assert answer.read() == b"yes"
    os.waitpid(child, 0)


def test_plain_node_has_no_problem(network: Network) -> None:
    node = network.node(pods=1)
    before = read(node.host)
    with connected(node.outside, "192.0.2.2", node.pods[0]) as (server, client):
        transfer(client, server, 20_000)
    assert codes(read(node.host), before) == []


def _tunnel(host: Namespace) -> None:
    kind = ("type", "vxlan", "id", "7", "dev", "eth0", "dstport", "4789")
    host.run("ip", "link", "add", "vx0", "mtu", "1450", *kind)
    host.run("ip", "link", "set", "vx0", "up")


def test_tunnel_that_does_not_fit_is_found_with_its_link(network: Network) -> None:
    node = network.node()
    node.host.run(
        "ip", "link", "add", "vx0", "mtu", "1450", "type", "vxlan", "id", "7", "dev", "eth0", "dstport", "4789"
    )
    node.host.run("ip", "link", "set", "vx0", "up")
    assert codes(read(node.host)) == []
    node.host.run("ip", "link", "set", "eth0", "mtu", "1490")  # the kernel does not change the tunnel then
    assert codes(read(node.host)) == [("mtu", "tunnel", "vx0")]


def test_pods_of_a_bridge_are_found(network: Network) -> None:
    host, pods = network.namespace("host"), [network.namespace(f"pod{number}") for number in range(2)]
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "link", "set", "br0", "up")
    for number, pod in enumerate(pods):
        network.veth(host, f"v{number}", pod, "eth0", mtu=1500 - 50 * number)
        host.run("ip", "link", "set", f"v{number}", "master", "br0")
    found = codes(read(host))
    assert ("mtu", "bridge", "br0") in found
    has_filter = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    if has_filter:
        host.sysctl("bridge/bridge-nf-call-iptables", "0")
        assert ("bridge-nf", "off", "br0") in codes(read(host))
        host.sysctl("bridge/bridge-nf-call-iptables", "1")
        assert ("bridge-nf", "off", "br0") not in codes(read(host))
    else:
        assert ("bridge-nf", "off", "br0") in found


def test_strict_filter_drops_asymmetric_packets_and_both_are_found(network: Network) -> None:
    """Packets come by the second link, and replies would take the first one."""
    host, peer = network.namespace("host"), network.namespace("peer")
    for number in (1, 2):
        network.veth(host, f"eth{number}", peer, f"eth{number}")
        host.run("ip", "address", "add", f"10.0.{number}.1/24", "dev", f"eth{number}")
        peer.run("ip", "address", "add", f"10.0.{number}.2/24", "dev", f"eth{number}")
    peer.run("ip", "address", "add", "10.9.9.9/32", "dev", "lo")
    peer.run("ip", "route", "add", "10.0.1.1/32", "dev", "eth2", "via", "10.0.2.1")
    host.run("ip", "route", "add", "10.9.9.9/32", "via", "10.0.1.2", "dev", "eth1")
    host.run("ip", "rule", "add", "from", "10.0.2.1", "table", "100")
    assert codes(read(host)) == []
    for link in ("all", "eth2"):
        host.sysctl(f"ipv4/conf/{link}/rp_filter", "1")
    before = read(host)
    assert codes(before) == [("rp-filter", "strict", "")]
    mac = next(link.mac for link in before.links if link.name == "eth2")
    # without it the peer would ask by ARP with an address that the filter refuses too
    peer.run("ip", "neighbour", "add", "10.0.2.1", "lladdr", mac, "dev", "eth2", "nud", "permanent")
    with peer.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("10.9.9.9", 0))
        for _ in range(3):
            sender.sendto(b"lost", ("10.0.1.1", 9))
    eventually("three dropped packets", lambda: _dropped(read(host), before) == 3)
    problems = {each.code: each for each in examine(read(host), before, Settings())}
    assert set(problems) == {"strict", "dropped"}
    assert problems["dropped"].times == 3


def _dropped(now: NodeEvidence, before: NodeEvidence) -> int:
    name = "IPReversePathFilter"
    return now.counters[name] - before.counters[name]


def _routed(network: Network, *, silent: bool) -> tuple[Namespace, Namespace]:
    """Two nodes with MTU 1500, and between them a router whose second link has MTU 1400."""
    one, router, other = (network.namespace(name) for name in ("one", "router", "other"))
    network.veth(one, "eth0", router, "left")
    network.veth(router, "right", other, "eth0", mtu=1400)
    router.sysctl("ipv4/ip_forward", "1")
    other.run("ip", "link", "set", "eth0", "mtu", "1500")
    for namespace, address, link in (
        (one, "10.0.1.1", "eth0"),
        (router, "10.0.1.254", "left"),
        (router, "10.0.2.254", "right"),
        (other, "10.0.2.1", "eth0"),
    ):
        namespace.run("ip", "address", "add", f"{address}/24", "dev", link)
    one.run("ip", "route", "add", "default", "via", "10.0.1.254")
    other.run("ip", "route", "add", "default", "via", "10.0.2.254")
    if silent:
        router.run("iptables", "-A", "OUTPUT", "-p", "icmp", "-j", "DROP")
    return one, other


@contextlib.contextmanager
def _agent(namespace: Namespace, address: str) -> Iterator[int]:
    """Something that answers HTTP, as the agent of a peer does; yields its port."""
    listening = namespace.socket()
    listening.bind((address, 0))
    listening.listen(8)
    accepted: list[socket.socket] = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                opened, _ = listening.accept()
                accepted.append(opened)
                with opened:
                    data = b""
                    while b"\r\n\r\n" not in data and (more := opened.recv(65536)):
                        data += more
                    opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        for each in (listening, *accepted):
            with contextlib.suppress(OSError):  # closed already
                each.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def _probed(namespace: Namespace, address: str, port: int, timeout_s: float = 10.0) -> PathAnswer:
    return namespace.call(lambda: asyncio.run(probe(address, port, timeout_s)))


def test_path_with_a_smaller_mtu_is_learned_and_found(network: Network) -> None:
    """The router answers with ICMP, so the kernel keeps an exception for the path."""
    one, other = _routed(network, silent=False)
    with _agent(other, "10.0.2.1") as port:
        answer = _probed(one, "10.0.2.1", port)
    assert answer == PathAnswer(connected=True, mtu=1400, delivered=True)
    now = read(one)
    assert [(each.destination, each.mtu) for each in now.exceptions] == [("10.0.2.1/32", 1400)]
    assert codes(now) == [("mtu", "path", "")]
    (problem,) = find_paths(now, {"other": answer})
    assert (problem.code, [each.value for each in problem.measures]) == ("peers", [1400, 1500])


def test_path_that_loses_full_size_packets_silently_is_a_black_hole(network: Network) -> None:
    need_namespaces("iptables")
    one, other = _routed(network, silent=True)
    with _agent(other, "10.0.2.1") as port:
        answer = _probed(one, "10.0.2.1", port, timeout_s=3.0)
    assert answer.connected
    assert not answer.delivered
    now = read(one)
    assert codes(now) == [], "the kernel learned nothing"
    assert [each.code for each in find_paths(now, {"other": answer})] == ["black-hole"]


def test_closed_port_says_nothing_about_the_path(network: Network) -> None:
    one, _ = _routed(network, silent=False)
    answer = _probed(one, "10.0.2.1", 9)
    assert answer == PathAnswer(connected=False)


def test_multipath_and_policy_routes_are_read(network: Network) -> None:
    node = network.node()
    network.veth(node.host, "eth1", node.outside, "eth1")
    node.host.run("ip", "address", "add", "198.51.100.1/24", "dev", "eth1")
    node.host.run(
        *("ip", "route", "add", "10.50.0.0/16", "mtu", "1400"),
        *("nexthop", "via", "192.0.2.2", "dev", "eth0", "nexthop", "via", "198.51.100.2", "dev", "eth1"),
    )
    node.host.run("ip", "-6", "rule", "add", "fwmark", "7", "table", "700")
    node.host.run("ip", "route", "add", "10.60.0.0/16", "dev", "eth1", "table", "700")
    now = read(node.host)
    names = {link.number: link.name for link in now.links}
    routes = {each.destination: each for each in now.routes}
    assert [names[number] for number in routes["10.50.0.0/16"].links] == ["eth0", "eth1"]
    assert routes["10.50.0.0/16"].mtu == 1400
    assert routes["10.60.0.0/16"].table == 700
    assert now.rules == 1


def test_counters_of_a_driver_are_read(network: Network) -> None:
    """The driver of veth counts the number of its other end. The machine's own links have no allowances, or have."""
    one, other = network.namespace("one"), network.namespace("other")
    network.veth(one, "left", other, "right")
    with one.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        counters = driver_counters(control, "left")
        with pytest.raises(OSError, match="No such device"):
            driver_counters(control, "absent")
    with other.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        (number,) = [number for number, name in other.call(socket.if_nameindex) if name == "right"]
        assert driver_counters(control, "right")
    assert counters["peer_ifindex"] == number
    assert one.call(read_allowances, ["left", "absent"]) == {}


def test_permanent_neighbours_of_the_namespace_are_counted(network: Network) -> None:
    """The node of the tests has one permanent neighbour for each IP version. The table itself is the machine's."""
    node = network.node()

    def count() -> list[int]:
        with NetlinkSocket(ROUTE, strict=True) as netlink:
            return [count_permanent(netlink, version) for version in (4, 6)]

    assert node.host.call(count) == [1, 1]


def test_namespace_of_a_pod_has_no_thresholds_e2b_infra_3508(network: Network) -> None:
    """Only the machine's first namespace has gc_thresh, so a check in a pod's would be blind: it says nothing."""
    assert read(network.namespace("pod")).neighbours == ()


Answers = Callable[[int], int]


@contextlib.contextmanager
def _dns_server(namespace: Namespace, address: str, replies: Answers) -> Iterator[int]:
    """A DNS server that answers request number N `replies(N)` times; yields its port."""
    listening = namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind((address, 0))
    stop = threading.Event()

    def answer() -> None:
        number = 0
        while not stop.is_set():
            data, client = listening.recvfrom(512)
            for _ in range(replies(number)):
                listening.sendto(data[:2] + b"\x81\x83" + data[4:], client)
            number += 1

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"last", listening.getsockname())
        thread.join(10)
        listening.close()


@pytest.mark.parametrize(("replies", "lost"), [(lambda _: 1, 0), (lambda number: number != 1, 1), (lambda _: 0, 2)])
def test_lost_answers_of_dns_are_counted_kubernetes_56903(network: Network, replies: Answers, lost: int) -> None:
    """One of two parallel requests gets no answer, and conntrack counts nothing."""
    node = network.node()
    before = read(node.host)
    timeout_s = 3.0 if lost else 30.0  # an answer that a busy machine delays for so long is a lost one
    with _dns_server(node.outside, "192.0.2.2", replies) as port:
        found = node.host.call(
            lambda: asyncio.run(lost_answers("192.0.2.2", port, "kubernetes.default.svc.cluster.local", timeout_s))
        )
    assert found == lost
    assert [code for _, code, _ in codes(read(node.host), before)] == []


def test_closed_port_of_dns_is_an_error(network: Network) -> None:
    node = network.node()
    with pytest.raises(ConnectionRefusedError):
        node.host.call(lambda: asyncio.run(lost_answers("192.0.2.2", 53, "example.com", 5.0)))


def test_doctor_of_this_machine_sees_a_mix_of_firewalls_kubernetes_71305(network: Network) -> None:
    """As root, the command finds rules of kube-proxy in legacy iptables beside rules of another program."""
    need_namespaces("iptables-legacy", "nft")
    host = network.namespace("host")
    command = (sys.executable, "-m", "muster.cli.main", "network", "doctor", "--here", "--window=0.1", "-o", "json")
    host.run("iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES")
    host.run("iptables-legacy", "-t", "nat", "-A", "KUBE-SERVICES", "-j", "RETURN")
    report = json.loads(host.run(*command))
    assert report["findings"] == []
    (unseen,) = report["unseen"]
    assert "hostNetwork: true" in unseen["why"], "the test's namespace is not the machine's"
    assert report["examined"] == ["the network of this machine", "firewalls of this machine"]
    host.run("nft", "add table ip filter; add chain ip filter DOCKER; add rule ip filter DOCKER drop")
    (finding,) = json.loads(host.run(*command))["findings"]
    assert (finding["id"], finding["severity"]) == ("firewall-mix", "warning")
    assert "the node uses iptables-legacy, and 1 rules of Docker are elsewhere" in finding["title"]


def test_doctor_of_this_machine_says_what_an_error_is(network: Network) -> None:
    """An error among the findings is exit status 1, for scripts."""
    node = network.node()
    _tunnel(node.host)
    node.host.run("ip", "link", "set", "eth0", "mtu", "1490")
    with pytest.raises(AssertionError, match="exit 1"):
        node.host.run(sys.executable, "-m", "muster.cli.main", "network", "doctor", "--here", "--window=0.1")


def test_part_of_the_network_agent_shows_the_mix_on_its_page(network: Network, tmp_path: Path) -> None:
    need_namespaces("iptables-legacy", "nft")
    host = network.namespace("host")
    pages: dict[str, Callable[[], bytes]] = {}
    setup = part_setup(HostPaths(state=tmp_path), pages.__setitem__)
    ((name, part),) = make_parts(setup, parse_config("checks: {enabled: true}"))
    assert (name, isinstance(part, ChecksPart)) == ("checks", True)
    assert isinstance(part, ChecksPart)
    host.call(part.look)
    assert part.page.problems == ()
    assert part.page.unread == ""
    host.run("iptables-legacy", "-A", "FORWARD", "-j", "ACCEPT")
    host.run("nft", "add table ip other; add chain ip other c; add rule ip other c drop")
    host.call(part.look)
    page = msgspec.json.decode(pages["checks"](), type=ChecksPage)
    assert [(each.check, each.code) for each in page.problems] == [("firewall", "mix")]
