"""The rules about a node's network, on files in the kernel's format and on lists of links and routes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.node.examine import KINDS, examine
from muster.network.checks.node.pathprobe import PathAnswer
from muster.network.checks.node.probed import DnsProbes, find_lost, find_paths
from muster.network.checks.node.read import NodePaths
from muster.network.checks.problem import Problem, finding_of
from muster.network.netlink.link import Link
from muster.network.netlink.paths import PathRoute
from muster.network.plan.needs import thresholds
from tests.support.networkproc import NetworkProc, read_files

MAIN = 254


@pytest.fixture
def node(tmp_path: Path) -> NetworkProc:
    """A node without a problem."""
    return NetworkProc(tmp_path / "proc")


def read(node: NetworkProc) -> NodeEvidence:
    """Read the files. Links and routes are left to the tests that need them."""
    return read_files(NodePaths.below(node.proc))


def link(number: int, name: str, kind: str = "", mtu: int = 1500, peer: int = 0, master: int = 0) -> Link:
    elsewhere = kind == "veth"
    return Link(number, name, kind, True, mtu, "", "", peer, elsewhere, master)


def found(now: NodeEvidence, before: NodeEvidence | None = None, settings: Settings | None = None) -> list[Problem]:
    return examine(now, before, settings or Settings())


def codes(problems: list[Problem]) -> list[tuple[str, str, str]]:
    return [(each.check, each.code, each.component) for each in problems]


DEFAULT = PathRoute("0.0.0.0/0", MAIN, (2,), 0)
ETH0 = link(2, "eth0")


def test_healthy_node_has_no_problem(node: NetworkProc) -> None:
    before, now = read(node), read(node)
    assert found(now, before) == []


def test_every_problem_has_a_kind_with_a_fix() -> None:
    for kind in KINDS.values():
        assert kind.fix.summary.endswith(".")
        assert not kind.title.endswith(".")


def test_conntrack_near_its_limit_kubernetes_71261(node: NetworkProc) -> None:
    node.conntrack(entries=209_715, limit=262_144)
    assert found(read(node)) == []
    node.conntrack(entries=209_716, limit=262_144)
    (problem,) = found(read(node))
    assert (problem.check, problem.code) == ("conntrack", "near-limit")
    assert [each.value for each in problem.measures] == [209_716, 262_144]


def test_dropped_packets_are_counted_over_all_cpus_kubernetes_71261(node: NetworkProc) -> None:
    node.conntrack(entries=1, limit=100, drop=5, early_drop=1)
    before = read(node)
    node.conntrack(entries=1, limit=100, drop=7, early_drop=2)
    (problem,) = found(read(node), before)
    assert (problem.code, problem.times) == ("dropped", 2 * (2 + 1))
    assert found(read(node), None) == [], "a counter's first value says nothing about now"


def test_counter_that_wraps_counts_on(node: NetworkProc) -> None:
    node.conntrack(entries=1, limit=100, cpus=1, drop=2**32 - 1)
    before = read(node)
    node.conntrack(entries=1, limit=100, cpus=1, drop=1)
    (problem,) = found(read(node), before)
    assert problem.times == 2


def test_few_lost_races_are_normal_and_many_are_reported_kubernetes_56903(node: NetworkProc) -> None:
    node.conntrack(entries=1, limit=100, cpus=1, insert_failed=0)
    before = read(node)
    node.conntrack(entries=1, limit=100, cpus=1, insert_failed=9)
    assert found(read(node), before) == []
    node.conntrack(entries=1, limit=100, cpus=1, insert_failed=10)
    (problem,) = found(read(node), before)
    assert (problem.code, problem.times) == ("insert-failed", 10)
    assert "single-request-reopen" in KINDS[problem.check, problem.code].fix.summary


def test_lost_answers_are_reported_without_insert_failed_kubernetes_56903() -> None:
    (problem,) = find_lost(DnsProbes("10.96.0.10", 2, 1), insert_failed=0)
    assert (problem.check, problem.code, problem.times) == ("dns", "lost", 1)
    assert "insert_failed rose by 0" in problem.message
    assert list(find_lost(DnsProbes("10.96.0.10", 2, 0), insert_failed=50)) == []


@pytest.mark.parametrize("version", [4, 6])
def test_neighbour_table_overflows_e2b_infra_3508(node: NetworkProc, version: int) -> None:
    """The table is full because of entries of all namespaces, which only its own counter shows."""
    node.neighbours(version, entries=1024, table_fulls=0)
    before = read(node)
    node.neighbours(version, entries=1024, table_fulls=16)
    problems = found(read(node), before)
    name = f"IPv{version}"
    assert codes(problems) == [("neighbours", "overflow", name), ("neighbours", "near-limit", name)]
    assert problems[0].times == 32
    for problem in problems:
        finding = finding_of(KINDS[problem.check, problem.code], problem, "n1")
        assert f"sysctl -w net.ipv{version}.neigh.default.gc_thresh3=100000" in finding.fix.commands
        assert "80000, 90000 and 100000" in problem.message, "the cluster's doctor has only the text"


def test_fix_of_a_full_table_is_larger_than_the_table_and_the_plan(node: NetworkProc) -> None:
    node.sysctl("ipv4/neigh/default/gc_thresh3", 200_000)
    node.neighbours(4, entries=190_000)
    (problem,) = found(read(node))
    assert problem.fix is not None
    assert problem.fix.commands[0] == "sysctl -w net.ipv4.neigh.default.gc_thresh3=312640"
    planned = Settings(planned_nodes=7500, pod_network="native", connections_per_pod=10_000)
    near = found(read(node), None, planned)[0]
    assert near.code == "near-limit"
    assert f"{thresholds(7500 + 220 + 7500 * 110)[2]}" in near.message


def test_permanent_neighbours_do_not_count_towards_the_limit(node: NetworkProc) -> None:
    """An overlay makes a permanent entry for each node (Linux counts gc_entries since 5.0)."""
    node.neighbours(4, entries=8000)
    now = read(node)
    tables = tuple(msgspec.structs.replace(each, permanent=7500) for each in now.neighbours)
    assert found(msgspec.structs.replace(now, neighbours=tables)) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(planned_nodes=299, pods=110), []),
        (Settings(planned_nodes=300, pods=110), ["IPv4", "IPv6"]),
        (Settings(planned_nodes=599, pods=110, pod_network="routes"), []),
        (Settings(planned_nodes=600, pods=110, pod_network="routes"), ["IPv4", "IPv6"]),
        (Settings(planned_nodes=10, pods=30, pod_network="native", connections_per_pod=1000), []),
        (Settings(planned_nodes=50, pods=30, pod_network="native", connections_per_pod=24), ["IPv4", "IPv6"]),
        (Settings(planned_nodes=7500, planned_neighbours=100), []),
        (Settings(planned_neighbours=9000), ["IPv4", "IPv6"]),
        (Settings(), []),
    ],
)
def test_neighbour_table_is_compared_with_the_plan(node: NetworkProc, settings: Settings, expected: list[str]) -> None:
    assert [each.component for each in found(read(node), None, settings)] == expected


def test_node_without_ipv6_needs_no_room_for_ipv6_neighbours(node: NetworkProc) -> None:
    now = msgspec.structs.replace(read(node), has_ipv6=False)
    assert [each.component for each in found(now, None, Settings(planned_nodes=7500))] == ["IPv4"]


def test_namespace_without_thresholds_has_no_tables(node: NetworkProc) -> None:
    """Only the first namespace of the machine has gc_thresh (e2b-dev/infra 3508)."""
    for family in ("ipv4", "ipv6"):
        (node.proc / f"sys/net/{family}/neigh/default/gc_thresh3").unlink()
    assert read(node).neighbours == ()


def test_tunnel_that_does_not_fit_is_an_error(node: NetworkProc) -> None:
    """Azure's nodes have MTU 1500: a VXLAN of 1450 fits, and one of 1500 does not."""
    fits = msgspec.structs.replace(read(node), links=(ETH0, link(5, "vxlan.calico", "vxlan", 1450)), routes=(DEFAULT,))
    assert found(fits) == []
    (problem,) = found(msgspec.structs.replace(fits, links=(ETH0, link(5, "flannel.1", "vxlan", 1451))))
    assert codes([problem]) == [("mtu", "tunnel", "flannel.1")]
    assert "1451 and 50 bytes of vxlan do not fit in MTU 1500 of eth0" in problem.message


def test_tunnel_is_compared_with_the_link_below_it(node: NetworkProc) -> None:
    links = (link(2, "eth0", mtu=1500), link(3, "eth1", mtu=9000), link(5, "vx", "vxlan", 8950, peer=3))
    assert found(msgspec.structs.replace(read(node), links=links, routes=(DEFAULT,))) == []


def test_pods_with_larger_mtu_than_the_way_out(node: NetworkProc) -> None:
    """AWS: pods keep 9001 while the node's link was set to 1500."""
    links = (ETH0, link(7, "eni1", "veth", 9001, peer=3), link(8, "eni2", "veth", 1500, peer=3))
    (problem,) = found(msgspec.structs.replace(read(node), links=links, routes=(DEFAULT,)))
    assert codes([problem]) == [("mtu", "pod-links", "eth0")]
    assert "1 links of pods have up to MTU 9001, and eth0 has 1500" in problem.message


def test_ports_of_one_bridge_with_different_mtu(node: NetworkProc) -> None:
    links = (
        link(4, "cni0", "bridge"), link(7, "a", "veth", 1500, 3, 4), link(8, "b", "veth", 1450, 3, 4),
    )  # fmt: skip
    now = msgspec.structs.replace(read(node), links=links, bridge_nf=1)
    assert codes(found(now)) == [("mtu", "bridge", "cni0")]


def test_learned_paths_to_private_addresses_are_reported_and_to_the_internet_not(node: NetworkProc) -> None:
    learned = (
        PathRoute("10.0.3.7/32", MAIN, (2,), 1400),
        PathRoute("8.8.8.8/32", MAIN, (2,), 1280),
        PathRoute("10.0.3.8/32", MAIN, (2,), 1500),
    )
    (problem,) = found(msgspec.structs.replace(read(node), links=(ETH0,), exceptions=learned))
    assert codes([problem]) == [("mtu", "path", "")]
    assert problem.message == "1 paths are smaller: 10.0.3.7 (1400)"


def test_probes_find_black_holes_and_small_paths(node: NetworkProc) -> None:
    now = msgspec.structs.replace(read(node), links=(ETH0,), routes=(DEFAULT,))
    answers = {
        "n1 (10.0.0.1)": PathAnswer(True, 1500, True),
        "n2 (10.0.0.2)": PathAnswer(True, 1500, False),
        "n3 (10.0.0.3)": PathAnswer(True, 1400, True),
        "n4 (10.0.0.4)": PathAnswer(False),
    }
    problems = list(find_paths(now, answers))
    assert [each.code for each in problems] == ["black-hole", "peers"]
    assert problems[0].message == "1 of 4 probed: n2 (10.0.0.2)"
    assert "n3 (10.0.0.3)" in problems[1].message


def test_connections_to_one_destination_near_the_range_of_ports(node: NetworkProc) -> None:
    node.sysctl("ipv4/ip_local_port_range", "40000\t40009")
    node.sysctl("ipv4/ip_local_reserved_ports", "40000-40001,50000")
    busy = [("0500000A:9C4A", "0A00640A:01BB", "06")] * 7
    other = [("0500000A:9C4B", "0B00640A:01BB", "01")] * 6
    incoming = [("0500000A:2710", "0C00640A:0001", "01")] * 8
    node.sockets(("00000000:2710", "00000000:0000", "0A"), *busy, *other, *incoming)
    (problem,) = found(read(node))
    assert codes([problem]) == [("snat", "local-ports", "10.100.0.10:443")]
    assert problem.message == "7 connections to 10.100.0.10:443, and 8 ports"


def test_azure_gives_1024_ports_for_public_addresses(node: NetworkProc) -> None:
    public = [("0500000A:9C4A", "08080808:01BB", "01")] * 820
    private = [("0500000A:9C4A", "0A00640A:01BB", "01")] * 1000
    node.sockets(*public, *private)
    assert found(read(node)) == []
    (problem,) = found(read(node), None, Settings(cloud_ports=1024))
    assert codes([problem]) == [("snat", "cloud-ports", "8.8.8.8:443")]


def test_loopback_connections_need_no_ports_of_the_cloud(node: NetworkProc) -> None:
    node.sysctl("ipv4/ip_local_port_range", "40000\t40009")
    node.sockets(*[("0100007F:9C4A", "0100007F:01BB", "01")] * 10)
    assert found(read(node)) == []


def test_strict_reverse_path_with_policy_rules(node: NetworkProc) -> None:
    """AWS's plugin routes pods of a second interface by rules: strict mode drops what comes by the first one."""
    node.sysctl("ipv4/conf/all/rp_filter", 0)
    node.sysctl("ipv4/conf/eth0/rp_filter", 1)
    plain = msgspec.structs.replace(read(node), links=(ETH0,), routes=(DEFAULT,))
    assert found(plain) == []
    (problem,) = found(msgspec.structs.replace(plain, rules=3))
    assert (codes([problem]), problem.message) == ([("rp-filter", "strict", "")], "eth0, with 3 policy rules")


@pytest.mark.parametrize(("everywhere", "here", "strict"), [(0, 1, 1), (1, 0, 1), (2, 1, 0), (1, 2, 0), (0, 0, 0)])
def test_larger_value_of_the_reverse_path_filter_holds(
    node: NetworkProc, everywhere: int, here: int, strict: int
) -> None:
    node.sysctl("ipv4/conf/all/rp_filter", everywhere)
    node.sysctl("ipv4/conf/eth0/rp_filter", here)
    now = msgspec.structs.replace(read(node), links=(ETH0,), rules=1)
    assert len(found(now)) == strict


def test_two_links_to_one_destination_are_asymmetric(node: NetworkProc) -> None:
    node.sysctl("ipv4/conf/all/rp_filter", 1)
    routes = (DEFAULT, PathRoute("10.0.0.0/16", MAIN, (2,), 0), PathRoute("10.0.0.0/16", MAIN, (3,), 0))
    now = msgspec.structs.replace(read(node), links=(ETH0, link(3, "eth1")), routes=routes)
    (problem,) = found(now)
    assert problem.message == "eth0, eth1, with several links to 10.0.0.0/16"


def test_packets_dropped_by_the_reverse_path_filter_are_counted(node: NetworkProc) -> None:
    node.counters({"TW": 3, "IPReversePathFilter": 4})
    before = read(node)
    node.counters({"TW": 3, "IPReversePathFilter": 9})
    (problem,) = found(read(node), before)
    assert (problem.check, problem.code, problem.times) == ("rp-filter", "dropped", 5)


def test_bridge_of_pods_without_bridge_nf_loses_services(node: NetworkProc) -> None:
    links = (link(4, "cni0", "bridge"), link(7, "a", "veth", 1500, 3, 4), link(8, "b", "veth", 1500, 3, 4))
    now = msgspec.structs.replace(read(node), links=links)
    assert now.bridge_nf is None
    assert codes(found(now)) == [("bridge-nf", "off", "cni0")]
    assert found(msgspec.structs.replace(now, bridge_nf=1)) == []


def test_bridge_with_the_nodes_own_link_counts_twice(node: NetworkProc) -> None:
    links = (link(4, "br0", "bridge"), link(2, "eth0", master=4), link(7, "a", "veth", 1500, 3, 4))
    now = msgspec.structs.replace(read(node), links=links, bridge_nf=1)
    assert codes(found(now)) == [("bridge-nf", "counts-twice", "br0")]
    assert found(msgspec.structs.replace(now, bridge_nf=0)) == []


def test_packets_beyond_the_allowance_of_the_cloud_are_named(node: NetworkProc) -> None:
    """AWS: the VPC's resolver takes 1024 packets/s from an interface, which is one more cause of lost DNS answers."""
    name = "eth0 linklocal_allowance_exceeded"
    before = msgspec.structs.replace(read(node), allowances={name: 3, "eth0 bw_in_allowance_exceeded": 7})
    now = msgspec.structs.replace(before, allowances={name: 8, "eth0 bw_in_allowance_exceeded": 7})
    (problem,) = found(now, before)
    assert (codes([problem]), problem.times) == ([("allowance", "exceeded", name)], 5)
    assert found(now) == []


def test_damaged_files_find_nothing(node: NetworkProc) -> None:
    for name in (
        "net/stat/nf_conntrack",
        "net/stat/arp_cache",
        "net/netstat",
        "net/tcp",
        "sys/net/ipv4/ip_local_port_range",
    ):
        node.write(name, "garbage \x00 that no kernel writes\nzz zz")
    node.write("sys/net/netfilter/nf_conntrack_max", "0")
    now = read(node)
    assert now.conntrack is None
    assert found(now, now) == []


def test_finding_names_the_node_the_evidence_and_the_fix(node: NetworkProc) -> None:
    node.conntrack(entries=100, limit=100)
    (problem,) = found(read(node))
    finding = finding_of(KINDS[problem.check, problem.code], problem, "gpu-7")
    assert finding.id == "conntrack-near-limit"
    assert (finding.who[0].kind, finding.who[0].name) == ("Node", "gpu-7")
    assert "100 connections of at most 100" in finding.title
    assert finding.fix.commands
