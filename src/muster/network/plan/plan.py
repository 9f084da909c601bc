"""The address plan: ranges, blocks of nodes, and what connects and separates the clusters, as plain data."""

from __future__ import annotations

from typing import Any, Final, Literal

from muster.network.plan.finding import Finding
from muster.network.plan.needs import NodeNeeds
from muster.network.plan.range import Family
from muster.network.plan.request import PlanRequest, Strict, Use

LOCAL: Final = "local"
DROP: Final = "drop"
GATEWAY: Final = "gateway"

Allocator = Literal["provider", "kube-controller-manager", "other"]


class PlannedRange(Strict):
    """One range.

    Attributes:
        grows_to: the larger range around it whose rest is free, so that it can double in place; "" if there is none.
        kept: it was in the previous plan.
    """

    cluster: str
    use: Use
    family: Family
    cidr: str
    grows_to: str = ""
    kept: bool = False


class Capacity(Strict):
    """How full the ranges of one use are. All numbers are addresses.

    Attributes:
        needed: today.
        planned: after the years of the request.
        years_left: of growth that fits; None: more than 99.
    """

    cluster: str
    use: Use
    family: Family
    addresses: int
    needed: int
    planned: int
    years_left: float | None


class NodeBlock(Strict):
    """The blocks of each node.

    Attributes:
        mask_size: prefix length of a block (kube-controller-manager: --node-cidr-mask-size-ipv4, -ipv6).
        blocks_per_node: more than one only where a cloud assigns blocks to NICs.
        nodes: that the pod ranges have room for.
        previous_mask: in the previous plan, if it was different; 0 otherwise.
        allocator: `provider`, `kube-controller-manager`, or `other` if that one cannot work with these ranges.
    """

    cluster: str
    family: Family
    mask_size: int
    blocks_per_node: int
    nodes: int
    allocator: Allocator
    previous_mask: int = 0


class VirtualNetwork(Strict):
    """A cluster's network at the provider, with the CIDRs that are assigned to it."""

    cluster: str
    cidrs: tuple[str, ...]


class Peering(Strict):
    """A connection between the hub and a spoke. There is none between spokes.

    Attributes:
        forwarded_traffic: packets that the other side only forwards are accepted (Azure: allowForwardedTraffic).
        gateway_transit: the spoke uses the hub's gateway, through which researchers come.
    """

    name: str
    hub: str
    spoke: str
    forwarded_traffic: bool
    gateway_transit: bool


class Route(Strict):
    """A route of a cluster's network. The longest prefix wins.

    Attributes:
        via: `local`, the name of a peering, `gateway` (the cluster's own way out), or `drop`.
    """

    cluster: str
    destination: str
    via: str


class FirewallRule(Strict):
    """A rule of a cluster's firewall. The first one that matches decides; answers to allowed connections are allowed.

    Attributes:
        direction: `in` and `out` of the cluster, or `forward` for packets that only pass through it.
    """

    cluster: str
    direction: Literal["in", "out", "forward"]
    priority: int
    action: Literal["allow", "deny"]
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    why: str


class Manifests(Strict):
    """Objects for the API server of one cluster.

    Attributes:
        tuning: the section of the same name in network.yaml, the network agent's configuration.
    """

    cluster: str
    tuning: dict[str, Any]
    network_policies: tuple[dict[str, Any], ...]
    address_pools: tuple[dict[str, Any], ...] = ()


class Plan(Strict, tag_field="kind", tag="NetworkPlan"):
    """The whole plan. The same request gives the same plan."""

    request: PlanRequest
    ranges: tuple[PlannedRange, ...]
    capacities: tuple[Capacity, ...]
    node_blocks: tuple[NodeBlock, ...]
    virtual_networks: tuple[VirtualNetwork, ...]
    peerings: tuple[Peering, ...]
    routes: tuple[Route, ...]
    firewall_rules: tuple[FirewallRule, ...]
    manifests: tuple[Manifests, ...]
    needs: tuple[NodeNeeds, ...]
    findings: tuple[Finding, ...] = ()
