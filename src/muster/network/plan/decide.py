"""Decides the address plan of a request. Pure: the same request gives the same plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from muster.network.plan import isolation
from muster.network.plan.check import check
from muster.network.plan.estate import estate_of
from muster.network.plan.isolation import Sites
from muster.network.plan.needs import MTU_BYTES, NodeNeeds, conntrack, neighbours, pod_mtu, tuning
from muster.network.plan.placement import Group, Placed, place
from muster.network.plan.plan import (
    LOCAL,
    Allocator,
    Capacity,
    Manifests,
    NodeBlock,
    Plan,
    PlannedRange,
    Route,
    VirtualNetwork,
)
from muster.network.plan.range import Family, Range, aggregate, parse_range, subtract
from muster.network.plan.request import ClusterRequest, PlanRequest, Use
from muster.network.plan.sizing import (
    NODE_MASK_DIFFERENCE_MAX,
    block_size,
    needed,
    nodes_after,
    previous_mask,
    years_left,
)

AWS_VPC_PREFIX: Final = 16
"""The largest IPv4 CIDR of a VPC."""


def decide(request: PlanRequest) -> Plan:
    """Return the plan, with what the checker finds about it. Raises NoRoom."""
    placed = place(request)
    previous = {parse_range(each.cidr) for each in request.previous}
    ranges = [
        PlannedRange(
            group.cluster.name,
            group.use,
            group.family,
            str(each),
            str(placed.rooms[each]) if each in placed.rooms else "",
            each in previous,
        )
        for group, found in placed.ranges.items()
        for each in found
    ]
    capacities = [_capacity(request, group, found) for group, found in placed.ranges.items()]
    sites = _sites(request, placed)
    routes = isolation.routes(request, sites)
    beyond = Counter((each.cluster, _family(each)) for each in routes if each.via != LOCAL)
    all_needs = tuple(_needs(request, cluster, beyond) for cluster in request.clusters)
    plan = Plan(
        request=replace(request, previous=()),
        ranges=tuple(ranges),
        capacities=tuple(capacities),
        node_blocks=tuple(_node_blocks(request, placed)),
        virtual_networks=tuple(_virtual_networks(request, sites)),
        peerings=tuple(isolation.peerings(request)),
        routes=tuple(routes),
        firewall_rules=tuple(isolation.firewall_rules(request, sites)),
        manifests=tuple(
            Manifests(
                cluster.name,
                tuning(needs),
                tuple(isolation.network_policies(request, sites, cluster.name)),
                tuple(_address_pools(request, sites, cluster)),
            )
            for cluster, needs in zip(request.clusters, all_needs, strict=True)
        ),
        needs=all_needs,
    )
    return replace(plan, findings=check(estate_of(plan)))


def _capacity(request: PlanRequest, group: Group, ranges: list[Range]) -> Capacity:
    cluster, use, family = group
    addresses = sum(each.size for each in ranges)
    return Capacity(
        cluster.name,
        use,
        family,
        addresses,
        needed(request, cluster, use, family, 0),
        needed(request, cluster, use, family, request.years),
        years_left(request, cluster, use, family, addresses),
    )


def _sites(request: PlanRequest, placed: Placed) -> Sites:
    by_cluster: dict[str, dict[Use, list[Range]]] = {cluster.name: {} for cluster in request.clusters}
    for group, ranges in placed.ranges.items():
        by_cluster[group.cluster.name].setdefault(group.use, []).extend(ranges)
    taken = [(parse_range(each.cidr), each.reachable) for each in request.taken]
    taken = [(each, open_) for each, open_ in taken if each.family in request.families]
    closed = [each for each, open_ in taken if not open_]
    # A range that is not reachable stays so inside a reachable one, and the other way round.
    reachable = [
        part
        for each, open_ in taken
        if open_
        for part in subtract(each, (inner for inner in closed if each.contains(inner)))
    ]
    used = [each for ranges in placed.ranges.values() for each in ranges]
    supernets = [each for each in map(parse_range, request.supernets) if each.family in request.families]
    return Sites(by_cluster, reachable, aggregate((*supernets, *used)), aggregate((*supernets, *used, *closed)))


def _node_blocks(request: PlanRequest, placed: Placed) -> Iterator[NodeBlock]:
    for group, ranges in placed.ranges.items():
        if group.use != "pods":
            continue
        block = block_size(request, group.cluster, group.family)
        size = 1 << (group.family.bits - block.prefix)
        room = sum(each.size // size for each in ranges)
        if request.network == "native":
            # The first and the last block of each subnet hold addresses that the cloud keeps.
            room -= 2 if group.family is Family.V4 else 0
        yield NodeBlock(
            group.cluster.name,
            group.family,
            block.prefix,
            block.number,
            room // block.number,
            _allocator(request, group.family, block.prefix, ranges),
            _changed_mask(request, group, block.prefix),
        )


def _changed_mask(request: PlanRequest, group: Group, mask: int) -> int:
    previous = previous_mask(request, group.cluster) if group.family is Family.V4 else 0
    return previous if request.network != "native" and previous != mask else 0


def _allocator(request: PlanRequest, family: Family, mask: int, ranges: list[Range]) -> Allocator:
    if request.network == "native":
        return "provider"
    merged = aggregate(ranges)
    works = len(merged) == 1 and (family is Family.V4 or mask - merged[0].prefix <= NODE_MASK_DIFFERENCE_MAX)
    return "kube-controller-manager" if works else "other"


def _virtual_networks(request: PlanRequest, sites: Sites) -> Iterator[VirtualNetwork]:
    """Yield the CIDRs of each cluster's network. On AWS, an IPv4 CIDR is at most a /16."""
    for cluster in request.clusters:
        by_use: Mapping[Use, list[Range]] = {use: list(each) for use, each in sites.ranges[cluster.name].items()}
        inside = [each for use in ("nodes", "pods") for each in by_use.get(use, ()) if _in_network(request, use)]
        cidrs = aggregate(inside)
        if request.provider == "aws":
            cidrs = [part for each in cidrs for part in _split(each)]
        yield VirtualNetwork(cluster.name, tuple(map(str, cidrs)))


def _in_network(request: PlanRequest, use: Use) -> bool:
    return use == "nodes" or request.network == "native"


def _split(whole: Range) -> list[Range]:
    if whole.family is Family.V6 or whole.prefix >= AWS_VPC_PREFIX:
        return [whole]
    step = 1 << (32 - AWS_VPC_PREFIX)
    return [Range(whole.family, first, AWS_VPC_PREFIX) for first in range(whole.first, whole.end, step)]


def _address_pools(request: PlanRequest, sites: Sites, cluster: ClusterRequest) -> Iterator[dict[str, object]]:
    """Yield AddressPools for Muster's own CNI, where the network routes blocks of nodes."""
    if request.network != "routes":
        return
    for number, each in enumerate(aggregate(sites.ranges[cluster.name]["pods"])):
        block = block_size(request, cluster, each.family)
        yield {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "AddressPool",
            "metadata": {"name": f"pods-{each.family.value.lower()}-{number}"},
            "spec": {"cidr": str(each), "blockPrefix": block.prefix},
        }


def _needs(request: PlanRequest, cluster: ClusterRequest, routes: Counter[tuple[str, Family]]) -> NodeNeeds:
    nodes = nodes_after(request, cluster, request.years)
    mtu = request.mtu or MTU_BYTES[request.provider]
    outer = Family.V6 if request.families == (Family.V6,) else Family.V4
    network, per_node = request.network, cluster.pods_per_node
    blocks = nodes if network == "routes" else 0
    tables = [routes[cluster.name, family] + blocks for family in request.families]
    return NodeNeeds(
        cluster=cluster.name,
        nodes=nodes,
        neighbours=tuple(
            neighbours(family, network, nodes, per_node, cluster.connections_per_pod) for family in request.families
        ),
        conntrack=conntrack(per_node, cluster.connections_per_pod),
        routes=per_node + (nodes if network != "native" else 1),
        route_table=max(tables),
        mtu_bytes=mtu,
        pod_mtu_bytes=pod_mtu(mtu, request.encapsulated, outer),
    )


def _family(route: Route) -> Family:
    return Family.V6 if ":" in route.destination else Family.V4
