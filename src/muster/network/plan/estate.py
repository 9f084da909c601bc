"""An existing estate: clusters with the ranges that they use. It is written by hand, read from clusters, or a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import yaml

from muster.api.configtext import ConfigText
from muster.network.plan.config import PAGE
from muster.network.plan.plan import NodeBlock, Plan
from muster.network.plan.range import Family, RangeError, parse_range
from muster.network.plan.request import Encapsulation, PodNetwork, Provider, Strict, Taken
from muster.network.plan.sizing import nodes_after

NUMBERS_MAX: Final = 1 << 40


class EstateCluster(Strict):
    """A cluster. 0 and "" mean unknown: the rules that need the value are skipped.

    Attributes:
        virtual_network: name of its network at the provider; "" is one of its own.
        planned_nodes: in some years; 0: as many as now.
        node_blocks: blocks that nodes have now (Node.spec.podCIDRs).
        used: addresses and blocks that are assigned inside the ranges, for fragmentation.
        node_mask_ipv4, node_mask_ipv6: prefix length of a node's block.
        previous_node_mask: of IPv4 blocks that nodes still have, if it is different.
        blocks_per_node: more than one where a cloud assigns blocks to NICs.
        addresses: how a cloud assigns pods' addresses to NICs: as blocks, or each on its own.
        allocator: what gives nodes their blocks; "other" is not kube-controller-manager.
        in_use: the ranges of nodes and pods are the addresses in use, as a running cluster shows them. So nothing is
            known about room.
        routes: in the provider's route table.
        gc_thresh3, conntrack_max: settings of its nodes.
    """

    name: str
    role: Literal["hub", "spoke", ""] = ""
    virtual_network: str = ""
    nodes: int = 0
    planned_nodes: int = 0
    pods_per_node: int = 0
    services: int = 0
    connections_per_pod: int = 0
    node_ranges: tuple[str, ...] = ()
    pod_ranges: tuple[str, ...] = ()
    service_ranges: tuple[str, ...] = ()
    researcher_ranges: tuple[str, ...] = ()
    node_blocks: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    node_mask_ipv4: int = msgspec.field(default=0, name="nodeMaskIPv4")
    node_mask_ipv6: int = msgspec.field(default=0, name="nodeMaskIPv6")
    previous_node_mask: int = 0
    blocks_per_node: int = 1
    addresses: Literal["blocks", "individual"] = "blocks"
    allocator: Literal["provider", "kube-controller-manager", "other"] = "kube-controller-manager"
    network_cidrs: tuple[str, ...] = ()
    in_use: bool = False
    routes: int = 0
    interfaces: int = 0
    addresses_per_interface: int = 0
    mtu: int = 0
    pod_mtu: int = 0
    encapsulation: Encapsulation = "none"
    gc_thresh3: int = 0
    conntrack_max: int = 0

    def node_mask(self, family: Family) -> int:
        """Return the prefix length of a node's block; 0 if it is unknown."""
        return self.node_mask_ipv4 if family is Family.V4 else self.node_mask_ipv6


class EstatePeering(Strict):
    """Two clusters whose networks are connected."""

    clusters: tuple[str, str]


class Estate(Strict):
    """All clusters whose networks are, or will be, connected."""

    clusters: tuple[EstateCluster, ...]
    provider: Provider = "metal"
    pod_network: PodNetwork | Literal[""] = ""
    supernets: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    peerings: tuple[EstatePeering, ...] = ()

    @property
    def network(self) -> PodNetwork:
        """How packets of pods travel: as written, else native in a cloud, and routed on metal."""
        return self.pod_network or ("routes" if self.provider == "metal" else "native")


def parse_estate(text: str | yaml.Node, file: str = "") -> Estate:
    """Parse an estate. Raises ConfigTextError with every problem."""
    read = ConfigText(text, Estate, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def _problems(estate: Estate) -> Iterator[tuple[str, str]]:
    names: set[str] = set()
    for index, cluster in enumerate(estate.clusters):
        at = f"$.clusters[{index}]"
        if not cluster.name:
            yield f"{at}.name", "is empty; write a name for messages"
        if cluster.name in names:
            yield f"{at}.name", f"{cluster.name!r} is the name of another cluster; choose a different one"
        names.add(cluster.name)
        for field in msgspec.structs.fields(EstateCluster):
            value: Any = getattr(cluster, field.name)
            if type(value) is int and not 0 <= value <= NUMBERS_MAX:
                yield f"{at}.{field.encode_name}", f"{value} is not possible; write 0 or more"
            if isinstance(value, tuple):
                yield from _not_ranges(f"{at}.{field.encode_name}", value)
        if cluster.node_mask_ipv4 > 32 or cluster.node_mask_ipv6 > 128:
            yield at, "a node mask is longer than an address; write at most 32 and 128"
    yield from _not_ranges("$.supernets", estate.supernets)
    for index, taken in enumerate(estate.taken):
        yield from _not_ranges(f"$.taken[{index}].cidr", (taken.cidr,))
    for index, peering in enumerate(estate.peerings):
        for name in peering.clusters:
            if name not in names:
                yield f"$.peerings[{index}].clusters", f"there is no cluster {name!r}; write one of {sorted(names)}"


def _not_ranges(path: str, texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for index, text in enumerate(texts):
        try:
            parse_range(text)
        except RangeError as error:
            yield f"{path}[{index}]", str(error)


def estate_of(plan: Plan) -> Estate:
    """Return the estate that exists once a plan is carried out."""
    request = plan.request
    ranges: dict[tuple[str, str], tuple[str, ...]] = {}
    for planned in plan.ranges:
        key = planned.cluster, planned.use
        ranges[key] = (*ranges.get(key, ()), planned.cidr)
    all_blocks: dict[str, dict[Family, NodeBlock]] = {}
    for block in plan.node_blocks:
        all_blocks.setdefault(block.cluster, {})[block.family] = block
    all_needs = {each.cluster: each for each in plan.needs}
    networks = {each.cluster: each.cidrs for each in plan.virtual_networks}
    clusters = []
    for each in request.clusters:
        blocks = all_blocks[each.name]
        first = next(iter(blocks.values()))
        v4 = blocks.get(Family.V4)
        needs = all_needs[each.name]
        clusters.append(
            EstateCluster(
                name=each.name,
                role=each.role,
                nodes=each.nodes,
                planned_nodes=nodes_after(request, each, request.years),
                pods_per_node=each.pods_per_node,
                services=each.services,
                connections_per_pod=each.connections_per_pod,
                node_ranges=ranges[each.name, "nodes"],
                pod_ranges=ranges[each.name, "pods"],
                service_ranges=ranges[each.name, "services"],
                researcher_ranges=ranges.get((each.name, "researchers"), ()),
                node_mask_ipv4=v4.mask_size if v4 else 0,
                node_mask_ipv6=blocks[Family.V6].mask_size if Family.V6 in blocks else 0,
                previous_node_mask=v4.previous_mask if v4 else 0,
                blocks_per_node=(v4 or first).blocks_per_node,
                allocator="other" if any(b.allocator == "other" for b in blocks.values()) else first.allocator,
                network_cidrs=networks[each.name],
                routes=needs.route_table,
                interfaces=each.interfaces,
                addresses_per_interface=each.addresses_per_interface,
                mtu=needs.mtu_bytes,
                pod_mtu=needs.pod_mtu_bytes,
                encapsulation=request.encapsulated,
            )
        )
    return Estate(
        clusters=tuple(clusters),
        provider=request.provider,
        pod_network=request.network,
        supernets=request.supernets,
        taken=request.taken,
        peerings=tuple(EstatePeering((peering.hub, peering.spoke)) for peering in plan.peerings),
    )
