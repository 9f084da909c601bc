"""How many addresses a cluster needs: blocks of nodes, growth, and how many years a range lasts.

Sources:
    kube-controller-manager (pkg/controller/nodeipam/ipam/cidrset, clusterSubnetMaxDiff): each node gets one block of a
        fixed size. For IPv6, at most 16 bits may lie between the masks of the cluster and of a node.
    kube-apiserver (cmd/kube-apiserver/app/options/validation.go): ranges of Services have at most 20 bits.
    Amazon EC2, "Prefix delegation", and Azure, PodIPAllocationMode: blocks of /28 are assigned to NICs, and on AWS /80.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from muster.network.plan.range import Family
from muster.network.plan.request import ADDRESSES_PER_BLOCK, ClusterRequest, PlanRequest, Use

SERVICE_BITS_MAX: Final = 20
NODE_MASK_DIFFERENCE_MAX: Final = 16
RESERVED_IN_CLOUD: Final = 5
"""Addresses of each subnet that the cloud keeps (AWS: "Subnet CIDR blocks"; Azure: "Virtual Network FAQ")."""
RESERVED_ON_METAL: Final = 3
"""Network, gateway and broadcast."""
YEARS_MAX: Final = 99
_SPARE: Final = 4
"""A node's block has a quarter more addresses than pods, because an address rests before its next use."""


class BlockSize(NamedTuple):
    """The blocks of one node: the length of their prefix, and their number."""

    prefix: int
    number: int


def block_size(request: PlanRequest, cluster: ClusterRequest, family: Family) -> BlockSize:
    """Return the blocks that a node of the cluster needs for its pods."""
    native = request.network == "native"
    if family is Family.V6:
        return BlockSize(80 if native else 64, 1)
    addresses = cluster.pods_per_node + -(-cluster.pods_per_node // _SPARE)
    if native:
        return BlockSize(28, -(-addresses // ADDRESSES_PER_BLOCK))
    previous = previous_mask(request, cluster)
    if previous and cluster.pods_per_node + RESERVED_ON_METAL <= 1 << (32 - previous):
        return BlockSize(previous, 1)
    return BlockSize(32 - (addresses + RESERVED_ON_METAL - 1).bit_length(), 1)


def previous_mask(request: PlanRequest, cluster: ClusterRequest) -> int:
    """Return the prefix length of a node's IPv4 block in the previous plan; 0 if there was none."""
    masks = (
        each.node_mask
        for each in request.previous
        if each.cluster == cluster.name and each.use == "pods" and ":" not in each.cidr
    )
    return max(masks, default=0)


def interfaces_needed(cluster: ClusterRequest, blocks: int) -> int:
    """Return how many NICs a node needs for its blocks: one address of each NIC is the NIC's own."""
    each = cluster.addresses_per_interface - 1
    return -(-blocks // each) if each > 0 else 1


def needed(request: PlanRequest, cluster: ClusterRequest, use: Use, family: Family, years: float) -> int:
    """Return the addresses that a cluster needs for a use after some years of growth."""
    factor = _factor(request, cluster, years)
    reserved = RESERVED_ON_METAL if request.provider == "metal" else RESERVED_IN_CLOUD
    if use == "services":
        return math.ceil(cluster.services * factor) + 2
    if use == "researchers":
        return math.ceil(request.researchers * factor) + reserved
    nodes = nodes_after(request, cluster, years)
    block = block_size(request, cluster, family)
    if use == "nodes":
        ours = interfaces_needed(cluster, block.number) if request.network == "native" else 1
        return nodes * ours + reserved
    # The first and the last block of a cloud's subnet hold reserved addresses.
    more = 2 if request.network == "native" and family is Family.V4 else 0
    return (nodes * block.number + more) << (family.bits - block.prefix)


def nodes_after(request: PlanRequest, cluster: ClusterRequest, years: float) -> int:
    """Return the nodes of a cluster after some years of growth."""
    return math.ceil(cluster.nodes * _factor(request, cluster, years))


def _factor(request: PlanRequest, cluster: ClusterRequest, years: float) -> float:
    # A float's power is Any to the type checker, as it may be complex.
    return float((1 + request.growth(cluster)) ** years)


def prefix_for(request: PlanRequest, use: Use, family: Family, addresses: int) -> int:
    """Return the longest prefix whose range holds the addresses, and that the provider and Kubernetes accept."""
    prefix = family.bits - (addresses - 1).bit_length()
    if family is Family.V4:
        return min(prefix, 24 if use == "services" else 28)
    if use == "services":
        return min(prefix, 112)
    if request.provider == "aws" and use != "researchers":
        # AWS: IPv6 ranges of a VPC are /44 to /60, in steps of 4 ("VPC CIDR blocks").
        return min(prefix // 4 * 4, 60)
    return min(prefix, 64)


def years_left(request: PlanRequest, cluster: ClusterRequest, use: Use, family: Family, addresses: int) -> float | None:
    """Return for how many years of growth the addresses suffice. None: more than 99; negative: not even today."""
    if needed(request, cluster, use, family, YEARS_MAX) <= addresses:
        return None
    if needed(request, cluster, use, family, 0) > addresses:
        return -1.0
    low, high = 0, YEARS_MAX * 10  # in tenths of a year
    while high - low > 1:
        middle = (low + high) // 2
        if needed(request, cluster, use, family, middle / 10) <= addresses:
            low = middle
        else:
            high = middle
    return low / 10
