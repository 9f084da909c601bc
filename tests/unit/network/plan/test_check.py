"""The checker: each rule finds its fault, and a plan of our own has none."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from muster.network.plan.check import PER_RULE_MAX, check
from muster.network.plan.decide import decide
from muster.network.plan.document import previous_ranges
from muster.network.plan.estate import Estate, EstateCluster, EstatePeering
from muster.network.plan.finding import Finding
from muster.network.plan.placement import NoRoom
from muster.network.plan.range import Family
from muster.network.plan.request import PlanRequest, Taken
from tests.unit.network.plan.requests import BOTH, V6, cluster, plan_requests, request

CARRIED = {
    "limit-addresses",
    "limit-peered-addresses",
    "limit-cidrs",
    "limit-routes",
    "limit-peerings",
    "address-family",
}
"""Limits of clouds that a request exceeds, wherever its ranges are."""


def estate(*clusters: EstateCluster, **more: Any) -> Estate:
    return Estate(clusters, **more)


def site(name: str = "a", **more: Any) -> EstateCluster:
    return EstateCluster(name, **more)


def found(*clusters: EstateCluster, **more: Any) -> list[Finding]:
    return list(check(estate(*clusters, **more)))


def only(*clusters: EstateCluster, **more: Any) -> Finding:
    (finding,) = found(*clusters, **more)
    return finding


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(plan_requests())
def test_a_plan_of_our_own_has_no_finding_but_limits_of_its_cloud(asked: PlanRequest) -> None:
    try:
        plan = decide(asked)
    except NoRoom:
        assume(False)
        raise
    large = max(each.nodes for each in plan.needs) > 2**16
    expected = CARRIED | ({"node-mask"} if large and Family.V6 in asked.families else set())
    others = [each for each in plan.findings if each.id not in expected]
    # Kept free space between taken ranges is the estate's own fragmentation.
    assert [each for each in others if each.id != "fragmented" or not asked.taken] == []
    if asked.provider == "metal":
        assert {each.id for each in plan.findings} <= {"fragmented", "node-mask"}


@pytest.mark.parametrize(("mine", "theirs"), list(permutations(["10.10.10.0/24", "10.10.0.0/16"])))
def test_submariner_io_submariner_operator_182_containment_is_found_in_both_directions(mine: str, theirs: str) -> None:
    finding = only(site("a", pod_ranges=(mine,)), site("b", pod_ranges=(theirs,)))
    assert (finding.id, finding.severity) == ("overlap", "error")
    large, small = ("a", "b") if mine.endswith("/16") else ("b", "a")
    assert finding.what == f"the pods of {large} (10.10.0.0/16) contain the pods of {small} (10.10.10.0/24)"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"pod_ranges": ("10.0.0.0/16",)}, {"service_ranges": ("10.0.0.0/16",)}),
        ({"node_ranges": ("fd00::/48",)}, {"pod_ranges": ("fd00::/64",)}),
        ({"researcher_ranges": ("10.9.0.0/20",)}, {"node_ranges": ("10.9.1.0/24",)}),
    ],
)
def test_every_use_is_compared_with_every_other(first: dict[str, Any], second: dict[str, Any]) -> None:
    for left, right in ((first, second), (second, first)):
        assert only(site("a", **left), site("b", **right)).id == "overlap"
        assert "overlap" in [each.id for each in found(site("a", **left, **right))]


def test_kubernetes_kops_16340_services_inside_the_pods_of_the_same_cluster_are_an_error() -> None:
    finding = only(site(pod_ranges=("10.0.0.0/8",), service_ranges=("10.96.0.0/12",)))
    assert finding.what == "the pods of a (10.0.0.0/8) contain the services of a (10.96.0.0/12)"


def test_equal_ranges_of_services_are_a_warning_because_each_cluster_alone_works() -> None:
    services = ("10.96.0.0/12",)
    finding = only(site("a", service_ranges=services), site("b", service_ranges=services))
    assert (finding.id, finding.severity) == ("overlap", "warning")


def test_taken_ranges_are_compared_with_clusters_and_not_with_each_other() -> None:
    taken = (Taken("10.0.0.0/8", "networks of the lab"), Taken("10.1.0.0/16", "office"))
    finding = only(site(pod_ranges=("10.2.0.0/16",)), taken=taken)
    assert finding.what == "the networks of the lab (10.0.0.0/8) contain the pods of a (10.2.0.0/16)"


def test_pods_in_the_subnets_of_nodes_are_how_a_cloud_s_native_network_works() -> None:
    shared = site(node_ranges=("10.0.0.0/16",), pod_ranges=("10.0.0.0/16",))
    assert found(shared, provider="aws") == []
    assert [each.id for each in found(shared)] == ["overlap"]
    twins = [replace(shared, name=name, virtual_network="vpc-1") for name in ("a", "b")]
    assert found(*twins, provider="aws") == []
    assert {each.id for each in found(*(replace(each, virtual_network="") for each in twins), provider="aws")} == {
        "overlap"
    }


def test_many_pairs_of_the_same_uses_are_one_finding() -> None:
    blocks = tuple(f"10.1.{number}.0/24" for number in range(200))
    finding = only(site("a", node_blocks=blocks), site("b", node_ranges=("10.1.0.0/16",)))
    assert "more pairs" in finding.what
    assert len(finding.where) <= 20


def test_a_rule_stops_after_some_findings_and_says_so() -> None:
    clusters = [site(f"c{number}", pod_ranges=("10.0.0.0/16",)) for number in range(30)]
    overlaps = [each for each in found(*clusters) if each.id == "overlap"]
    assert len(overlaps) == PER_RULE_MAX
    assert overlaps[-1].what.startswith(f"there are more findings like this than the {PER_RULE_MAX}")


def test_two_nodes_with_one_block_are_found() -> None:
    twice = site(pod_ranges=("10.1.0.0/16",), node_blocks=("10.1.1.0/24", "10.1.2.0/24", "10.1.1.0/25"))
    said = {each.id: each.what for each in found(twice)}
    assert said["blocks-overlap"] == "1 pair of blocks of nodes overlap: 10.1.1.0/24 and 10.1.1.0/25"


def test_a_block_outside_of_the_ranges_of_pods_is_found() -> None:
    assert only(site(pod_ranges=("10.1.0.0/16",), node_blocks=("10.2.1.0/24",))).id == "block-outside"


@pytest.mark.parametrize(
    ("range_", "severity", "what"),
    [
        ("172.17.0.0/24", "warning", "docker"),
        ("172.16.0.0/12", "warning", "docker"),
        ("169.254.4.0/24", "error", "link local"),
        ("100.64.0.0/16", "warning", "shared address space"),
        ("240.0.0.0/8", "warning", "class E"),
        ("239.1.0.0/16", "error", "multicast"),
        ("fe80::/64", "error", "link local"),
        ("ff05::/64", "error", "multicast"),
        ("127.0.0.0/8", "error", "loopback"),
    ],
)
def test_ranges_with_a_special_meaning_are_found(range_: str, severity: str, what: str) -> None:
    finding = only(site(pod_ranges=(range_,)))
    assert (finding.id, finding.severity) == ("reserved-range", severity)
    assert what in finding.what


def test_ranges_that_only_azure_reserves_are_found_there() -> None:
    assert only(site(service_ranges=("172.30.0.0/16",)), provider="azure").id == "reserved-range"
    assert found(site(service_ranges=("172.30.0.0/16",)), provider="aws") == []
    assert found(site(node_ranges=("172.30.0.0/16",)), provider="azure") == []


def test_one_special_range_is_one_finding_for_all_clusters() -> None:
    sites = [
        site(name, node_ranges=(f"2001:db8:{name}::/64",), pod_ranges=(f"2001:db8:{name}:1::/64",)) for name in "ab"
    ]
    finding = only(*sites)
    assert (finding.id, len(finding.where)) == ("reserved-range", 4)
    assert "and 3 more ranges" in finding.what


def test_pods_in_several_ranges_are_counted_as_they_are_written() -> None:
    ranges = ("10.0.0.0/17", "10.0.128.0/17", "10.9.0.0/16")
    assert "there are 3 ranges" in only(site(pod_ranges=ranges, node_mask_ipv4=24)).what


def test_public_addresses_are_found() -> None:
    assert only(site(node_ranges=("203.0.112.0/24",))).id == "public-range"


@pytest.mark.parametrize(
    ("range_", "ids"),
    [
        ("10.0.0.0/11", ["service-range-too-large"]),
        ("10.0.0.0/12", []),
        ("fd00::/107", ["service-range-too-large"]),
        ("fd00::/108", []),
    ],
)
def test_ranges_of_services_that_kube_apiserver_refuses_are_found(range_: str, ids: list[str]) -> None:
    assert [each.id for each in found(site(service_ranges=(range_,)))] == ids


@pytest.mark.parametrize(
    ("pods", "masks", "problem"),
    [
        (("fd00::/47",), (0, 64), "more than 16 bits"),
        (("fd00::/48",), (0, 64), ""),
        (("10.0.0.0/8",), (28, 0), ""),
        (("10.0.0.0/24",), (23, 0), "is larger than the range"),
        (("10.0.0.0/16", "10.2.0.0/16"), (24, 0), "there are 2 ranges"),
        (("10.0.0.0/16", "10.1.0.0/16"), (24, 0), ""),
    ],
)
def test_ranges_that_kube_controller_manager_cannot_divide_are_found(
    pods: tuple[str, ...], masks: tuple[int, int], problem: str
) -> None:
    """kubernetes/kubernetes 44918 limits IPv6 to 16 bits between both masks."""
    divided = site(pod_ranges=pods, node_mask_ipv4=masks[0], node_mask_ipv6=masks[1])
    assert [problem in each.what for each in found(divided) if each.id == "node-mask"] == [True] * bool(problem)
    relaxed = [each.severity for each in found(replace(divided, allocator="other")) if each.id == "node-mask"]
    assert relaxed == ["warning"] * bool(problem)


def test_kubernetes_kubernetes_70957_blocks_of_different_sizes_are_found() -> None:
    mixed = site(pod_ranges=("10.1.0.0/16",), node_blocks=("10.1.1.0/24", "10.1.2.0/26"))
    assert [(each.id, each.severity) for each in found(mixed)] == [("node-masks-differ", "error")]
    dual = site(pod_ranges=("10.1.0.0/16", "fd00::/48"), node_blocks=("10.1.1.0/24", "fd00::/64"))
    assert found(dual) == []


def test_kubernetes_kubernetes_80585_services_that_contain_the_pods_are_found() -> None:
    """kube-controller-manager then has no block for any node."""
    finding = only(site(pod_ranges=("10.0.0.0/24",), service_ranges=("10.0.0.0/21",)))
    assert finding.what == "the services of a (10.0.0.0/21) contain the pods of a (10.0.0.0/24)"


@pytest.mark.parametrize(("nodes", "planned", "severities"), [(256, 0, []), (257, 0, ["error"]), (9, 257, ["warning"])])
def test_ranges_without_room_for_the_nodes_are_found(nodes: int, planned: int, severities: list[str]) -> None:
    full = site(nodes=nodes, planned_nodes=planned, pod_ranges=("10.0.0.0/16",), node_mask_ipv4=24)
    assert [each.severity for each in found(full) if each.id == "range-full"] == severities


def test_nothing_is_said_about_the_room_of_a_cluster_that_shows_only_what_is_in_use() -> None:
    blocks = tuple(f"10.1.{number}.0/28" for number in range(9))
    running = site(nodes=9, node_ranges=("10.0.0.0/30",), pod_ranges=("10.2.0.0/24",), node_blocks=blocks, in_use=True)
    assert [each.id for each in found(running, provider="aws")] == ["block-outside"]


def test_reserved_addresses_of_a_cloud_s_subnet_are_not_room() -> None:
    for nodes, ids in ((251, []), (252, ["range-full"])):
        assert [each.id for each in found(site(nodes=nodes, node_ranges=("10.0.0.0/24",)), provider="aws")] == ids


def test_more_services_than_addresses_are_found() -> None:
    assert only(site(services=300, service_ranges=("10.0.0.0/24",))).id == "range-full"


def test_aws_amazon_vpc_cni_k8s_2749_scattered_addresses_leave_no_whole_block() -> None:
    """One address in each /28: 3,840 addresses are free, and no block."""
    used = tuple(f"10.0.{high}.{low}" for high in range(16) for low in range(3, 256, 16))
    scattered = site(pod_ranges=("10.0.0.0/20",), used=used, node_mask_ipv4=28)
    finding = only(scattered, provider="aws")
    assert (finding.id, finding.severity) == ("fragmented", "error")
    assert "3,840 free addresses, enough for 240 blocks of /28, but only 0 whole blocks" in finding.what
    assert found(replace(scattered, used=used[:80]), provider="aws") == []


def test_a_supernet_whose_free_space_is_in_pieces_is_found() -> None:
    roomy = tuple(f"10.0.{number * 16 + 8}.0/24" for number in range(1, 15))
    assert found(site(pod_ranges=("10.0.0.0/20",), node_ranges=roomy), supernets=("10.0.0.0/16",)) == []
    tight = tuple(f"10.0.{number * 16 + 8}.0/24" for number in range(1, 16))
    finding = only(site(pod_ranges=("10.0.0.0/20",), node_ranges=tight), supernets=("10.0.0.0/16",))
    assert finding.id == "fragmented"
    assert "no free /20" in finding.what


def azure(nodes: int, pods: int = 30, **more: Any) -> EstateCluster:
    more = {"node_ranges": ("10.0.0.0/14",), "pod_ranges": ("10.8.0.0/13",)} | more
    return site(nodes=nodes, pods_per_node=pods, **more)


def test_azure_allows_65_536_addresses_in_a_virtual_network_unless_they_are_blocks() -> None:
    """200,000 addresses of pods: too many on their own, and few as blocks of /28."""
    single = only(azure(7500, 26, addresses="individual"), provider="azure")
    assert (single.id, single.severity) == ("limit-addresses", "error")
    assert "202,500 addresses" in single.what
    assert "blocks of /28" in single.fix
    assert found(azure(7500, 26), provider="azure") == []


@pytest.mark.parametrize(("planned", "severity"), [(64_000, None), (65_537, "error")])
def test_a_planned_size_beyond_a_fixed_limit_is_an_error(planned: int, severity: str | None) -> None:
    wide = azure(100, planned_nodes=planned)
    assert [each.severity for each in found(wide, provider="azure", pod_network="overlay")] == (
        [severity] if severity else []
    )


def test_blocks_come_before_a_higher_quota_on_aws() -> None:
    wide = azure(7500, 26, addresses="individual", pod_ranges=(), node_ranges=("10.0.0.0/16",))
    many = only(wide, provider="aws", pod_network="native")
    assert (many.id, many.severity) == ("limit-addresses", "warning")
    assert many.fix.startswith("assign blocks of /28")
    assert many.fix.endswith("raise the quota (Service Quotas)")


@pytest.mark.parametrize(
    ("provider", "network", "families", "what"),
    [
        ("azure", "native", BOTH, "for IPv4 only"),
        ("azure", "overlay", BOTH, ""),
        ("azure", "overlay", V6, "needs IPv4 too"),
        ("aws", "native", BOTH, ""),
        ("aws", "native", V6, "needs IPv4 too"),
        ("metal", "routes", V6, ""),
    ],
)
def test_families_that_the_provider_cannot_carry_are_errors(
    provider: Any, network: Any, families: tuple[Family, ...], what: str
) -> None:
    plan = decide(request(cluster("a"), provider=provider, pod_network=network, families=families))
    said = [each for each in plan.findings if each.id == "address-family"]
    assert {each.where for each in said} == ({("hub",), ("a",)} if what else set())
    assert all(what in each.what and each.severity == "error" for each in said)


def test_an_ipv6_subnet_of_azure_is_exactly_a_64() -> None:
    both = ("10.0.0.0/20", "fd00:0:0:1::/80")
    small = only(site(node_ranges=both), provider="azure", pod_network="overlay")
    assert (small.id, small.severity) == ("cidr-size", "error")
    assert "exactly a /64" in small.what
    assert found(site(node_ranges=("10.0.0.0/20", "fd00::/56")), provider="azure", pod_network="overlay") == []


def test_azure_allows_256_addresses_on_a_machine() -> None:
    assert only(azure(10, 256, addresses="individual"), provider="azure").id == "interface-addresses"
    assert found(azure(10, 255, addresses="individual"), provider="azure") == []


def test_addresses_of_peered_networks_are_counted_together() -> None:
    clusters = [
        azure(40_000, 16, name=name, role=role, node_ranges=(nodes,), pod_ranges=(pods,))
        for name, role, nodes, pods in (
            ("hub", "hub", "10.0.0.0/15", "10.16.0.0/12"),
            ("a", "spoke", "10.2.0.0/15", "10.32.0.0/12"),
        )
    ]
    peerings = (EstatePeering(("hub", "a")),)
    ids = {each.id for each in found(*clusters, peerings=peerings, provider="azure")}
    assert ids == {"limit-addresses", "limit-peered-addresses"}
    small = [replace(each, nodes=30_000) for each in clusters]
    assert found(*small, peerings=peerings, provider="azure") == []


@pytest.mark.parametrize(("peers", "severity"), [(50, None), (51, "warning"), (126, "error")])
def test_peerings_of_a_vpc_are_limited(peers: int, severity: str | None) -> None:
    clusters = [site("hub", role="hub"), *(site(f"s{number}", role="spoke") for number in range(peers))]
    peerings = tuple(EstatePeering(("hub", each.name)) for each in clusters[1:])
    said = [each.severity for each in found(*clusters, peerings=peerings, provider="aws")]
    assert said == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("provider", "routes", "severity"),
    [
        ("aws", 500, None),
        ("aws", 501, "warning"),
        ("aws", 1001, "error"),
        ("azure", 401, "warning"),
        ("metal", 9999, None),
    ],
)
def test_routes_of_a_table_are_limited(provider: str, routes: int, severity: str | None) -> None:
    """The seeds found limits of routes when each node's block was one."""
    said = [(each.id, each.severity) for each in found(site(routes=routes), provider=provider)]
    assert said == ([("limit-routes", severity)] if severity else [])


def test_prefixes_that_do_not_fit_on_the_nics_are_found() -> None:
    small: dict[str, Any] = {"interfaces": 3, "addresses_per_interface": 10, "node_ranges": ("10.0.0.0/20",)}
    assert found(site(nodes=9, pods_per_node=110, **small), provider="aws") == []
    too_many = only(site(nodes=9, pods_per_node=110, addresses="individual", **small), provider="aws")
    assert too_many.id == "interface-addresses"
    assert "110 addresses for 110 pods, and its 3 NICs hold 27" in too_many.what


def test_cidrs_that_a_vpc_refuses_are_found() -> None:
    assert only(site(network_cidrs=("10.0.0.0/15",), node_ranges=("10.0.0.0/15",)), provider="aws").id == "cidr-size"
    many = tuple(f"10.{number}.0.0/16" for number in range(6))
    assert only(site(network_cidrs=many, node_ranges=many), provider="aws").id == "limit-cidrs"


def test_a_neighbour_table_that_is_too_small_for_the_planned_nodes_is_found() -> None:
    defaults = site(nodes=900, planned_nodes=7500, pods_per_node=30, gc_thresh3=1024, node_ranges=("10.0.0.0/16",))
    finding = only(defaults)
    assert (finding.id, finding.severity) == ("neighbours", "error")
    assert "set gc_thresh1, gc_thresh2 and gc_thresh3 to 9472, 10656 and 11840" in finding.fix
    assert found(replace(defaults, gc_thresh3=11840)) == []
    assert only(replace(defaults, gc_thresh3=8000)).severity == "warning"


def test_a_conntrack_table_that_is_too_small_is_found() -> None:
    small = site(nodes=10, pods_per_node=100, connections_per_pod=2000, conntrack_max=131_072)
    assert (only(small).id, only(small).severity) == ("conntrack", "error")
    assert "nf_conntrack_max to 524288" in only(small).fix
    assert found(replace(small, conntrack_max=524_288)) == []


@pytest.mark.parametrize(
    ("mtu", "pods", "encapsulation", "most"),
    [(1500, 1500, "vxlan", 1450), (1500, 1450, "vxlan", 0), (9001, 9001, "wireguard", 8941), (9001, 9001, "none", 0)],
)
def test_packets_that_do_not_fit_into_the_network_of_nodes_are_found(
    mtu: int, pods: int, encapsulation: str, most: int
) -> None:
    said = found(site(mtu=mtu, pod_mtu=pods, encapsulation=encapsulation))
    assert [each.fix for each in said] == ([f"set the MTU of pods to {most}"] if most else [])


def test_an_encapsulation_over_ipv6_needs_more_bytes() -> None:
    over6 = site(mtu=1500, pod_mtu=1450, encapsulation="vxlan", node_ranges=("fd00::/64",))
    assert only(over6).fix == "set the MTU of pods to 1430"


def test_ipv6_needs_1280_bytes() -> None:
    assert only(site(mtu=1300, pod_mtu=1250, pod_ranges=("fd00::/64",))).source == "RFC 8200, section 5"


def test_clusters_with_different_packet_sizes_are_found() -> None:
    finding = only(site("a", pod_mtu=1450), site("b", pod_mtu=8951))
    assert (finding.id, finding.where) == ("mtu-differs", ("a", "b"))


def test_spokes_that_can_reach_each_other_are_found() -> None:
    clusters = [site("hub", role="hub"), site("a", role="spoke"), site("b", role="spoke")]
    peered = tuple(EstatePeering(pair) for pair in (("hub", "a"), ("hub", "b"), ("a", "b")))
    assert found(*clusters, peerings=peered[:2]) == []
    finding = only(*clusters, peerings=peered)
    assert (finding.id, finding.severity, finding.where) == ("spokes-connected", "error", ("a", "b"))
    together = [clusters[0], *(replace(each, virtual_network="vnet") for each in clusters[1:])]
    assert only(*together).severity == "warning"


def test_errors_come_before_warnings() -> None:
    said = found(site(pod_ranges=("172.17.0.0/16",), service_ranges=("10.0.0.0/8",), node_ranges=("10.0.0.0/8",)))
    assert [each.severity for each in said] == sorted((each.severity for each in said), key=["error", "warning"].index)


def test_a_grown_plan_that_keeps_its_ranges_is_still_without_findings() -> None:
    first = decide(request(cluster("a", nodes=1000)))
    previous = previous_ranges(first)
    assert decide(request(cluster("a", nodes=1800), previous=previous)).findings == ()
    beyond_its_room = decide(request(cluster("a", nodes=3000), previous=previous))
    assert [(each.id, each.severity) for each in beyond_its_room.findings] == [("node-mask", "warning")]
