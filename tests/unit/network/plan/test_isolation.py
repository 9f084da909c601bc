"""Spokes never reach each other, and the hub reaches all: packets follow the plan's routes, peerings and rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from muster.network.plan.decide import decide
from muster.network.plan.document import previous_ranges
from muster.network.plan.placement import NoRoom
from muster.network.plan.plan import FirewallRule, Plan, Route
from muster.network.plan.request import PlanRequest, Taken
from tests.unit.network.plan.requests import BOTH, Network, cluster, plan_requests, request

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
FEWER = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@cache
def network_of(text: str) -> Network:
    return ipaddress.ip_network(text)


def inside(address: Address, texts: tuple[str, ...]) -> bool:
    return any(address in network_of(text) for text in texts)


def permitted(plan: Plan, cluster: str, direction: str, source: Address, destination: Address) -> bool:
    """The first rule that matches decides. Without one, packets may leave, and may not enter or pass."""
    rules = [each for each in plan.firewall_rules if (each.cluster, each.direction) == (cluster, direction)]
    for rule in sorted(rules, key=lambda each: each.priority):
        if inside(source, rule.sources) and inside(destination, rule.destinations):
            return rule.action == "allow"
    return direction == "out"


def next_hop(plan: Plan, cluster: str, destination: Address) -> str:
    matching = [
        (network_of(each.destination).prefixlen, each.via)
        for each in plan.routes
        if each.cluster == cluster and destination in network_of(each.destination)
    ]
    return max(matching)[1] if matching else "drop"


def arrives(
    plan: Plan, start: str, source: Address, destination: Address, *, routes: bool = True, rules: bool = True
) -> str:
    """Where the packet ends: the name of a cluster, or why it does not arrive. A layer can be left out."""
    at, hops = start, 0
    if rules and not permitted(plan, at, "out", source, destination):
        return "denied"
    ends = {each.name: {each.hub, each.spoke} for each in plan.peerings}
    while True:
        via = next_hop(plan, at, destination) if routes else _any_way(plan, at, destination)
        if via == "local":
            allowed = not rules or permitted(plan, at, "in", source, destination)
            return at if allowed else "denied"
        if via not in ends:
            return via
        if hops and rules and not permitted(plan, at, "forward", source, destination):
            return "denied"
        (at,) = ends[via] - {at}
        hops += 1
        assert hops < 5, "packets go in a circle"


def _any_way(plan: Plan, at: str, destination: Address) -> str:
    """Routes as a careless operator would write them: everything through the hub."""
    via = next_hop(plan, at, destination)
    hub = plan.peerings[0].hub
    return via if via == "local" or at == hub else next(each.name for each in plan.peerings if each.spoke == at)


def addresses(plan: Plan, cluster: str, *uses: str) -> list[Address]:
    """The first and the last address of each range."""
    found: list[Network] = [
        network_of(each.cidr) for each in plan.ranges if each.cluster == cluster and each.use in uses
    ]
    return [address for each in found for address in (each[0], each[-1])]


def planned(asked: PlanRequest) -> Plan:
    assume(len(asked.clusters) > 2)
    try:
        return decide(asked)
    except NoRoom:
        assume(False)
        raise


@pytest.mark.slow
@FEWER
@given(plan_requests())
def test_no_packet_of_a_spoke_arrives_at_another_spoke(asked: PlanRequest) -> None:
    plan = planned(asked)
    uses = ("nodes", "pods", "services")
    spokes = [each.name for each in asked.clusters[1:]]
    for start, end in permutations(spokes, 2):
        for source in addresses(plan, start, "nodes", "pods"):
            for destination in addresses(plan, end, *uses):
                if source.version == destination.version:
                    # Each layer is enough without the other one.
                    assert arrives(plan, start, source, destination) not in spokes
                    assert arrives(plan, start, source, destination, rules=False) not in spokes
                    assert arrives(plan, start, source, destination, routes=False) not in spokes


@pytest.mark.slow
@FEWER
@given(plan_requests())
def test_the_hub_and_researchers_reach_every_spoke_and_answers_come_back(asked: PlanRequest) -> None:
    plan = planned(asked)
    uses = ["nodes"]
    if asked.network != "overlay":
        uses.append("pods")
    if asked.provider == "metal":
        uses.append("services")
    for spoke in (each.name for each in asked.clusters[1:]):
        for source in addresses(plan, "hub", "nodes", "pods", "researchers"):
            for destination in addresses(plan, spoke, *uses):
                if source.version == destination.version:
                    assert arrives(plan, "hub", source, destination) == spoke
        for back in addresses(plan, "hub", "researchers", "nodes"):
            for answering in addresses(plan, spoke, "nodes"):
                if back.version == answering.version:
                    assert arrives(plan, spoke, answering, back) == "hub"


@pytest.mark.parametrize("only", ["hub", "a", "b"])
def test_the_firewall_of_one_cluster_alone_keeps_spokes_apart(only: str) -> None:
    plan = decide(request(cluster("a"), cluster("b"), families=BOTH))
    alone = replace(plan, firewall_rules=tuple(each for each in plan.firewall_rules if each.cluster == only))
    opened = [
        FirewallRule(name, direction, 1, "allow", ("::/0", "0.0.0.0/0"), ("::/0", "0.0.0.0/0"), "test")
        for name in {"hub", "a", "b"} - {only}
        for direction in ("in", "forward")
    ]
    alone = replace(alone, firewall_rules=(*alone.firewall_rules, *opened))
    for source, destination in zip(addresses(plan, "a", "pods"), addresses(plan, "b", "pods"), strict=True):
        assert arrives(alone, "a", source, destination, routes=False) == "denied"


def test_researchers_pass_through_the_hub_s_firewall_and_spokes_do_not() -> None:
    plan = decide(request(cluster("a"), cluster("b"), researchers=100))
    (researcher, _), (a, _) = addresses(plan, "hub", "researchers"), addresses(plan, "a", "nodes")
    (b, _) = addresses(plan, "b", "nodes")
    assert permitted(plan, "hub", "forward", researcher, a)
    assert not permitted(plan, "hub", "forward", b, a)
    denied = [each for each in plan.firewall_rules if each.direction == "forward" and each.action == "deny"]
    assert {each.cluster for each in denied} == {"hub", "a", "b"}


def test_peerings_connect_the_hub_only() -> None:
    plan = decide(request(cluster("a"), cluster("b"), cluster("c"), researchers=100))
    assert {(each.hub, each.spoke) for each in plan.peerings} == {("hub", "a"), ("hub", "b"), ("hub", "c")}
    assert not any(each.forwarded_traffic for each in plan.peerings)
    assert all(each.gateway_transit for each in plan.peerings)


def test_a_new_spoke_changes_nothing_in_the_rules_of_others() -> None:
    asked = request(cluster("a"), families=BOTH)
    before = decide(asked)
    kept = previous_ranges(before)
    after = decide(replace(asked, clusters=(*asked.clusters, cluster("b")), previous=kept))

    def of(plan: Plan, name: str) -> list[Any]:
        rules = [each for each in plan.firewall_rules if each.cluster == name]
        return [*rules, *(each for each in plan.manifests if each.cluster == name)]

    assert of(before, "a") == of(after, "a")


def test_pods_may_use_what_is_reachable_and_nothing_else_that_is_taken() -> None:
    office, other = Taken("10.1.0.0/16", "storage", reachable=True), Taken("10.2.0.0/16", "lab")
    plan = decide(request(cluster("a"), taken=(office, other)))
    (pod, _) = addresses(plan, "a", "pods")
    assert arrives(plan, "a", pod, ipaddress.ip_address("10.1.2.3")) == "gateway"
    assert arrives(plan, "a", pod, ipaddress.ip_address("10.2.2.3")) == "denied"
    assert arrives(plan, "a", pod, ipaddress.ip_address("10.2.2.3"), rules=False) == "drop"


def reached_by_policy(policy: dict[str, Any], direction: str, key: str, address: Address) -> bool:
    """As the documentation of NetworkPolicy says: a peer matches if its block has the address, and no exception has."""
    blocks = [peer["ipBlock"] for peer in policy["spec"][direction][0][key] if "ipBlock" in peer]
    return any(
        address in network_of(block["cidr"])
        and not any(address in network_of(each) for each in block.get("except", ()))
        for block in blocks
    )


@pytest.mark.parametrize(("direction", "key"), [("ingress", "from"), ("egress", "to")])
def test_network_policies_separate_spokes_and_leave_the_rest_open(direction: str, key: str) -> None:
    asked = request(cluster("a", namespaces=("team-a", "team-b")), cluster("b"), families=BOTH, researchers=50)
    plan = decide(asked)
    policies = {each.cluster: each.network_policies for each in plan.manifests}
    assert policies["hub"] == ()
    assert [each["metadata"]["namespace"] for each in policies["a"]] == ["team-a", "team-b"]
    check: Callable[[Address], bool] = lambda address: reached_by_policy(  # noqa: E731
        policies["a"][0], direction, key, address
    )
    uses = ("nodes", "pods", "services", "researchers")
    assert not any(check(address) for address in addresses(plan, "b", *uses))
    assert all(check(address) for name in ("a", "hub") for address in addresses(plan, name, *uses))
    for outside in ("8.8.8.8", "2001:4860:4860::8888", "169.254.169.254"):
        assert check(ipaddress.ip_address(outside))


def test_no_namespace_gets_a_policy_that_is_not_asked_for_and_each_policy_warns() -> None:
    plan = decide(request(cluster("a"), cluster("b", namespaces=("open",))))
    policies = {each.cluster: each.network_policies for each in plan.manifests}
    assert policies["a"] == ()
    (policy,) = policies["b"]
    assert "only add permissions" in policy["metadata"]["annotations"]["kubernetes.io/description"]


TAKEN = (
    Taken("192.168.0.0/16", "lab"),
    Taken("192.168.7.0/24", "storage", reachable=True),
    Taken("172.20.0.0/16", "office", reachable=True),
    Taken("172.20.9.0/24", "accounts"),
)


@pytest.mark.parametrize(
    ("address", "reached"),
    [("192.168.1.1", False), ("192.168.7.1", True), ("172.20.1.1", True), ("172.20.9.1", False), ("192.0.9.1", True)],
)
def test_taken_ranges_outside_of_the_supernets_are_reached_only_if_they_are_reachable(
    address: str, reached: bool
) -> None:
    plan = decide(request(cluster("a", namespaces=("open",)), taken=TAKEN))
    destination = ipaddress.ip_address(address)
    (policy,) = next(each.network_policies for each in plan.manifests if each.cluster == "a")
    assert reached_by_policy(policy, "egress", "to", destination) is reached
    (pod, _) = addresses(plan, "a", "pods")
    assert permitted(plan, "a", "out", pod, destination) is reached
    if not reached:
        assert next_hop(plan, "a", destination) == "drop"
        assert not reached_by_policy(policy, "ingress", "from", destination)


def test_a_policy_of_a_plan_that_owns_all_addresses_has_no_exception_as_large_as_its_block() -> None:
    supernets = ("0.0.0.0/1", "128.0.0.0/1")
    plan = decide(request(cluster("a", namespaces=("open",)), supernets=supernets))
    (policy,) = next(each.network_policies for each in plan.manifests if each.cluster == "a")
    assert not any("except" in peer["ipBlock"] for peer in policy["spec"]["egress"][0]["to"] if "ipBlock" in peer)


def test_the_walk_of_these_tests_notices_a_route_between_spokes() -> None:
    plan = decide(request(cluster("a"), cluster("b")))
    target = next(each.cidr for each in plan.ranges if (each.cluster, each.use) == ("b", "nodes"))
    broken = replace(plan, routes=(*plan.routes, Route("a", target, "hub--a")), firewall_rules=())
    (source, _), (destination, _) = addresses(plan, "a", "nodes"), addresses(plan, "b", "nodes")
    assert arrives(broken, "a", source, destination, rules=False) == "b"
