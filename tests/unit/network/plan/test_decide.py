"""Plans: ranges never overlap, hold the planned growth, and stay where they were."""

from __future__ import annotations

import ipaddress
from itertools import combinations
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.network.config import parse_config
from muster.network.plan.decide import decide
from muster.network.plan.document import previous_ranges
from muster.network.plan.placement import NoRoom
from muster.network.plan.plan import NodeBlock, Plan
from muster.network.plan.range import Family
from muster.network.plan.request import PlanRequest, PreviousRange, Taken
from muster.network.plan.reserved import RESERVED
from muster.network.tuning.config import wanted
from tests.unit.network.plan.requests import BOTH, V6, cluster, grown, networks, plan_requests, request

FEWER = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def planned(asked: PlanRequest) -> Plan:
    try:
        return decide(asked)
    except NoRoom:
        assume(False)
        raise


def cidrs(plan: Plan, name: str, use: str, family: Family = Family.V4) -> list[str]:
    return [each.cidr for each in plan.ranges if (each.cluster, each.use, each.family) == (name, use, family)]


def block(plan: Plan, name: str, family: Family = Family.V4) -> NodeBlock:
    return next(each for each in plan.node_blocks if (each.cluster, each.family) == (name, family))


@FEWER
@given(plan_requests())
def test_no_two_ranges_of_a_plan_overlap(asked: PlanRequest) -> None:
    plan = planned(asked)
    supernets = [ipaddress.ip_network(each) for each in asked.supernets]
    taken = [ipaddress.ip_network(each.cidr) for each in asked.taken]
    never = [ipaddress.ip_network(str(each.range)) for each in RESERVED]
    found = networks(plan)
    assert not [(a, b) for a, b in combinations(found, 2) if a.version == b.version and a.overlaps(b)]
    for each in found:
        assert any(whole.version == each.version and each.subnet_of(whole) for whole in supernets)  # type: ignore[arg-type]
        assert not any(other.version == each.version and other.overlaps(each) for other in (*taken, *never))


@FEWER
@given(plan_requests())
def test_every_range_holds_the_planned_years(asked: PlanRequest) -> None:
    plan = planned(asked)
    for each in plan.capacities:
        assert each.needed <= each.planned <= each.addresses
        assert each.years_left is None or each.years_left >= asked.years
    for blocks in plan.node_blocks:
        of = next(each for each in asked.clusters if each.name == blocks.cluster)
        assert blocks.nodes >= of.nodes * (1 + asked.growth(of)) ** asked.years
        if blocks.family is Family.V4:
            assert blocks.blocks_per_node * 2 ** (32 - blocks.mask_size) >= of.pods_per_node * 1.25


@pytest.mark.slow
@FEWER
@given(plan_requests())
def test_the_same_request_gives_the_same_plan(asked: PlanRequest) -> None:
    assert planned(asked) == decide(asked)


@pytest.mark.slow
@FEWER
@given(plan_requests(), st.floats(0.3, 4.0), st.booleans())
def test_a_grown_plan_keeps_every_range(asked: PlanRequest, factor: float, more: bool) -> None:
    first = planned(asked)
    later = replace(grown(asked, factor), previous=previous_ranges(first))
    if more:
        later = replace(later, clusters=(*later.clusters, cluster("new", nodes=50)))
    second = planned(later)
    kept = {(each.cluster, each.use, each.cidr) for each in second.ranges if each.kept}
    assert kept == {(each.cluster, each.use, each.cidr) for each in first.ranges}
    found = networks(second)
    assert not [(a, b) for a, b in combinations(found, 2) if a.version == b.version and a.overlaps(b)]
    assert all(each.planned <= each.addresses for each in second.capacities)
    for each in second.ranges:
        if each.grows_to:
            room = ipaddress.ip_network(each.grows_to)
            assert [str(other) for other in found if other.version == room.version and other.overlaps(room)] == [
                each.cidr
            ]


@FEWER
@given(plan_requests(taken=False))
def test_a_plan_of_its_own_plan_changes_nothing(asked: PlanRequest) -> None:
    first = planned(asked)
    again = decide(replace(asked, previous=previous_ranges(first)))
    assert [(e.cluster, e.use, e.cidr, e.grows_to) for e in again.ranges] == [
        (e.cluster, e.use, e.cidr, e.grows_to) for e in first.ranges
    ]
    assert (again.routes, again.firewall_rules, again.manifests) == (
        first.routes,
        first.firewall_rules,
        first.manifests,
    )


def test_a_range_that_is_full_doubles_in_place_and_aggregates_to_one_route() -> None:
    asked = request(cluster("train", nodes=1000, growth_per_year=0.0), years=1)
    first = decide(asked)
    (before,) = cidrs(first, "train", "pods")
    second = decide(replace(grown(asked, 1.6), previous=previous_ranges(first)))
    old, new = (ipaddress.IPv4Network(each) for each in cidrs(second, "train", "pods"))
    assert str(old) == before
    assert old.supernet() == new.supernet()
    routes = [each.destination for each in second.routes if each.cluster == "train" and each.via == "local"]
    assert str(old.supernet()) in routes
    assert block(second, "train").allocator == "kube-controller-manager"


def test_a_range_that_must_more_than_double_stays_one_range_while_its_neighbours_are_free() -> None:
    kept = (PreviousRange("train", "pods", "10.0.0.0/15"),)
    plan = decide(request(cluster("train", nodes=9000), years=1, previous=kept))
    found = [ipaddress.IPv4Network(each) for each in cidrs(plan, "train", "pods")]
    assert [str(each) for each in found] == ["10.0.0.0/15", "10.2.0.0/15", "10.4.0.0/14", "10.8.0.0/13"]


def test_new_clusters_do_not_use_the_room_of_others_while_there_is_space() -> None:
    asked = request(cluster("train", nodes=1000))
    first = decide(asked)
    second = decide(request(cluster("train", nodes=1000), cluster("new"), previous=previous_ranges(first)))
    rooms = [ipaddress.ip_network(each.grows_to) for each in first.ranges]
    new = [ipaddress.ip_network(each.cidr) for each in second.ranges if each.cluster == "new"]
    assert not [(room, each) for room in rooms for each in new if room.overlaps(each)]
    assert [each.grows_to for each in second.ranges if each.cluster == "train"] == [
        each.grows_to for each in first.ranges if each.cluster == "train"
    ]


def test_room_is_given_up_before_a_plan_is_refused() -> None:
    asked = request(cluster("train", nodes=1000), supernets=("10.0.0.0/13",), years=2)
    plan = decide(asked)
    assert {each.grows_to for each in plan.ranges} == {""}


def test_room_that_a_new_cluster_needs_is_not_promised_any_more() -> None:
    tight: dict[str, Any] = {"supernets": ("10.0.0.0/13",), "years": 1}
    first = decide(request(cluster("train", nodes=1000), **tight))
    second = decide(
        request(
            *(cluster(name, nodes=1000) for name in ("train", "new", "newest")),
            previous=previous_ranges(first),
            **tight,
        )
    )
    rooms = [ipaddress.ip_network(each.grows_to) for each in second.ranges if each.grows_to]
    new = [ipaddress.ip_network(each.cidr) for each in second.ranges if each.cluster != "train"]
    new = [each for each in new if str(each) not in {kept.cidr for kept in first.ranges}]
    assert not [(room, each) for room in rooms for each in new if room.overlaps(each)]
    before = {each.cidr: each.grows_to for each in first.ranges}
    assert any(before.get(each.cidr) and not each.grows_to for each in second.ranges)


def test_the_nodes_that_fit_leave_out_the_edges_of_a_cloud_s_subnet() -> None:
    plan = decide(request(cluster("train", 7500, 8), provider="aws"))
    blocks = 2 ** (28 - int(cidrs(plan, "train", "pods")[0].partition("/")[2]))
    assert (block(plan, "train").nodes, block(plan, "train").blocks_per_node) == (blocks - 2, 1)


def test_the_size_of_blocks_stays_while_pods_fit_into_them() -> None:
    first = decide(request(cluster("train", pods_per_node=45)))
    assert block(first, "train").mask_size == 26
    for pods, mask, ids in ((45, 26, []), (61, 26, []), (30, 26, []), (62, 25, ["node-masks-differ"])):
        later = decide(request(cluster("train", pods_per_node=pods), previous=previous_ranges(first)))
        assert (block(later, "train").mask_size, [each.id for each in later.findings]) == (mask, ids)
    # Blocks of a cloud have one size, and a node gets more of them.
    native = decide(request(cluster("train", pods_per_node=30), provider="aws"))
    more = decide(request(cluster("train", pods_per_node=90), provider="aws", previous=previous_ranges(native)))
    assert (block(more, "train").mask_size, block(more, "train").blocks_per_node) == (28, 8)
    assert "node-masks-differ" not in [each.id for each in more.findings]


def test_a_route_for_each_node_exceeds_the_tables_of_clouds() -> None:
    """The seeds left pod networks with routes because of it."""
    for provider in ("aws", "azure"):
        plan = decide(request(cluster("train", 7500, 26), provider=provider, pod_network="routes"))
        assert [each.id for each in plan.findings if each.severity == "error"] == ["limit-routes"]


def test_ranges_of_a_cluster_that_is_gone_are_free() -> None:
    asked = request(cluster("old", nodes=1000), supernets=("10.0.0.0/13",), years=2)
    first = decide(asked)
    second = decide(
        request(cluster("new", nodes=1000), supernets=("10.0.0.0/13",), years=2, previous=previous_ranges(first))
    )
    assert cidrs(second, "new", "pods") == cidrs(first, "old", "pods")


def test_a_plan_that_does_not_fit_names_the_range_and_the_years_that_fit() -> None:
    asked = request(cluster("train", nodes=1000), supernets=("10.0.0.0/14",), years=4)
    with pytest.raises(NoRoom, match=r"pods of train need an IPv4 range of /13.*10\.0\.0\.0/14.*years: 1, which fits"):
        decide(asked)
    with pytest.raises(NoRoom, match="plan fewer nodes or pods per node"):
        decide(replace(asked, supernets=("10.0.0.0/22",)))


def test_200_000_addresses_in_use_fit_on_azure_as_blocks() -> None:
    """The seeds' largest clusters had about 200,000 addresses in use."""
    plan = decide(request(cluster("train", 7500, 26, 3000, growth_per_year=0.0), provider="azure"))
    assert 7500 * 26 <= 200_000
    assert (block(plan, "train").mask_size, block(plan, "train").blocks_per_node) == (28, 3)
    assert plan.findings == ()


def test_100_000_nodes_are_planned_with_both_families() -> None:
    plan = decide(request(cluster("train", 100_000, 12, 20_000, growth_per_year=0.0), families=BOTH))
    assert block(plan, "train").nodes >= 100_000
    assert block(plan, "train", Family.V6).nodes >= 100_000
    # More than 16 bits lie between an IPv6 range of 100,000 blocks and a block.
    assert block(plan, "train", Family.V6).allocator == "other"
    assert [(each.id, each.severity) for each in plan.findings] == [("node-mask", "warning")]


def test_65_536_nodes_are_the_most_that_kube_controller_manager_can_give_ipv6_blocks() -> None:
    for nodes, allocator in ((65_536, "kube-controller-manager"), (65_537, "other")):
        plan = decide(request(cluster("train", nodes, 12, 20_000, growth_per_year=0.0), families=V6))
        assert block(plan, "train", Family.V6).allocator == allocator


def test_100_000_nodes_on_aws_exceed_what_a_vpc_can_be_granted() -> None:
    plan = decide(request(cluster("train", 100_000, 12, 20_000, growth_per_year=0.0), provider="aws"))
    errors = {each.id for each in plan.findings if each.severity == "error"}
    assert errors == set()
    more = decide(request(cluster("train", 100_000, 30, 20_000, growth_per_year=0.0), provider="aws"))
    assert {each.id for each in more.findings if each.severity == "error"} == {"limit-addresses", "limit-cidrs"}


def test_aws_gets_cidrs_that_a_vpc_accepts() -> None:
    plan = decide(request(cluster("train", 7500, 60), provider="aws", families=BOTH))
    cidrs_ = [ipaddress.ip_network(text) for each in plan.virtual_networks for text in each.cidrs]
    assert all(16 <= each.prefixlen <= 28 for each in cidrs_ if each.version == 4)
    assert all(each.prefixlen in range(44, 61, 4) for each in cidrs_ if each.version == 6)
    pods = ipaddress.ip_network(cidrs(plan, "train", "pods")[0])
    assert sum(each.num_addresses for each in cidrs_ if each.version == 4 and each.overlaps(pods)) == pods.num_addresses


def test_aws_accepts_ipv6_ranges_in_steps_of_four_bits() -> None:
    """More than 1,048,576 blocks of /80 do not fit into a /60, and the next size of a VPC is /56."""
    plan = decide(request(cluster("train", 900_000, growth_per_year=0.5), provider="aws", families=V6, years=1))
    assert cidrs(plan, "train", "pods", Family.V6)[0].endswith("/56")


def test_docker_s_bridge_inside_a_supernet_is_left_out() -> None:
    plan = decide(request(cluster("train", 2000), supernets=("172.16.0.0/12",), years=1))
    docker = ipaddress.ip_network("172.17.0.0/16")
    assert not [each for each in networks(plan) if each.overlaps(docker)]


def test_previous_ranges_outside_of_the_supernets_are_kept() -> None:
    old = decide(request(cluster("train"), supernets=("192.168.0.0/16",), years=1))
    train = cluster("train", namespaces=("open",))
    plan = decide(request(train, previous=previous_ranges(old), years=1))
    assert cidrs(plan, "train", "pods") == cidrs(old, "train", "pods")
    assert {each.via for each in plan.routes if each.destination in cidrs(old, "train", "pods")} == {
        "local",
        "hub--train",
        # The hub's and the spoke's own tables have the range, and no table drops it.
    }
    policy = next(each for each in plan.manifests if each.cluster == "train").network_policies[0]
    world = [peer["ipBlock"] for peer in policy["spec"]["egress"][0]["to"] if "except" in peer.get("ipBlock", {})]
    assert any(ipaddress.ip_network(text).overlaps(networks(old)[0]) for text in world[0]["except"])


def test_room_of_an_earlier_plan_that_is_taken_now_is_not_promised_again() -> None:
    first = decide(request(cluster("train")))
    room = next(each for each in first.ranges if (each.cluster, each.use) == ("train", "pods"))
    rest = str(next(half for half in ipaddress.ip_network(room.grows_to).subnets() if str(half) != room.cidr))
    asked = request(cluster("train"), previous=previous_ranges(first), taken=(Taken(rest, "lab"),))
    again = decide(asked)
    assert next(each for each in again.ranges if each.cidr == room.cidr).grows_to == ""


def test_the_agent_accepts_the_tuning_of_a_plan() -> None:
    plan = decide(request(cluster("train", 7500, 30), families=BOTH))
    section = next(each.tuning for each in plan.manifests if each.cluster == "train")
    needs = next(each for each in plan.needs if each.cluster == "train")
    values = wanted(parse_config(yaml.safe_dump({"tuning": section})).tuning)
    v6 = needs.neighbours[1]
    assert [values[f"ipv6/neigh/default/gc_thresh{number}"] for number in (1, 2, 3)] == [
        v6.gc_thresh1,
        v6.gc_thresh2,
        v6.gc_thresh3,
    ]
    assert values["netfilter/nf_conntrack_max"] == needs.conntrack.max


def test_the_largest_request_stays_within_what_the_kernel_accepts() -> None:
    large = cluster("train", 1_000_000, 4000, connections_per_pod=134_000, growth_per_year=0.0)
    plan = decide(request(large, provider="aws", families=V6))
    for each in plan.manifests:
        parse_config(yaml.safe_dump({"tuning": each.tuning}))
