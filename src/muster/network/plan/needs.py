"""What the kernels of a cluster's nodes need: neighbour tables, connection tracking, routes, MTU.

Sources:
    Linux, Documentation/networking: ip-sysctl (gc_thresh1-3), nf_conntrack-sysctl.
    kube-proxy's defaults: at least 131,072 tracked connections, and a hash bucket for four.
    Overheads: VXLAN (RFC 7348), Geneve (RFC 8926), IP in IP (RFC 2003), WireGuard.
    OpenAI's page about 2,500 nodes: thresholds of 80,000, 90,000 and 100,000. The ratios here are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.network.plan.range import Family
from muster.network.plan.request import Encapsulation, PodNetwork, Provider

OVERHEAD_BYTES: Final[Mapping[Encapsulation, Mapping[Family, int]]] = {
    "none": {Family.V4: 0, Family.V6: 0},
    "vxlan": {Family.V4: 50, Family.V6: 70},
    "geneve": {Family.V4: 50, Family.V6: 70},
    "ipip": {Family.V4: 20, Family.V6: 40},
    "wireguard": {Family.V4: 60, Family.V6: 80},
}
"""By the family of the outer packets."""
MTU_BYTES: Final[Mapping[Provider, int]] = {"aws": 9001, "azure": 1500, "metal": 1500}
"""Defaults of nodes (Amazon EC2: "Network MTU for your EC2 instance"; Azure: "TCP/IP performance tuning")."""
CONNTRACK_MIN: Final = 131_072
CONNECTIONS_PER_POD: Final = 1000
"""If the operator does not name another number."""
GC_THRESH_DEFAULTS: Final = (128, 512, 1024)
_ENTRY_BYTES: Final = 320
_BUCKET_BYTES: Final = 8
_CONNECTIONS_PER_BUCKET: Final = 4


class Neighbours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The neighbour table of one family (net.ipv4.neigh.default, net.ipv6.neigh.default).

    Attributes:
        entries: how many neighbours a node may have.
        gc_thresh1, gc_thresh2, gc_thresh3: with them the kernel drops none of these entries.
    """

    family: Family
    entries: int
    gc_thresh1: int
    gc_thresh2: int
    gc_thresh3: int


class Conntrack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Connection tracking: net.netfilter.nf_conntrack_max and nf_conntrack_buckets, and its kernel memory if full."""

    connections: int
    max: int
    buckets: int
    memory_bytes: int


class NodeNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What each node of a cluster needs at the planned size.

    Attributes:
        routes: in the kernel of a node.
        route_table: routes in the provider's table of the cluster, one family (peerings and blocks of nodes).
        mtu_bytes, pod_mtu_bytes: of the nodes' network, and of pods.
    """

    cluster: str
    nodes: int
    neighbours: tuple[Neighbours, ...]
    conntrack: Conntrack
    routes: int
    route_table: int
    mtu_bytes: int
    pod_mtu_bytes: int


def neighbours(
    family: Family, network: PodNetwork, nodes: int, pods_per_node: int, connections_per_pod: int
) -> Neighbours:
    """Return the neighbour table that a node needs."""
    entries = neighbour_entries(network, nodes, pods_per_node, connections_per_pod)
    return Neighbours(family, entries, *thresholds(entries))


def neighbour_entries(network: PodNetwork, nodes: int, pods_per_node: int, connections_per_pod: int) -> int:
    """Return how many entries the neighbour table of a node may have. It assumes that all nodes are in one subnet.

    The table is one for all network namespaces of the machine. So each pod of the node takes two entries: the node's
    for the pod, and the pod's for its gateway.
    """
    entries = nodes + 2 * pods_per_node
    if network == "native":
        # Pods are in the cloud's subnets, so a node resolves each peer's pod. It cannot have more than its connections.
        return entries + min(nodes * pods_per_node, pods_per_node * connections_per_pod)
    if network == "overlay":
        return entries + nodes  # the addresses of the nodes' tunnels
    return entries


def thresholds(entries: int) -> tuple[int, int, int]:
    """Return gc_thresh1 to gc_thresh3 with which the kernel drops none of these entries."""
    first = max(_rounded(entries * 5 // 4), GC_THRESH_DEFAULTS[0])
    second = max(first * 9 // 8, GC_THRESH_DEFAULTS[1])
    return first, second, max(first * 5 // 4, GC_THRESH_DEFAULTS[2])


def conntrack(pods_per_node: int, connections_per_pod: int) -> Conntrack:
    """Return the size of the conntrack table: twice the expected connections, as a power of two."""
    connections = pods_per_node * connections_per_pod
    most = max(1 << (2 * connections - 1).bit_length(), CONNTRACK_MIN)
    buckets = most // _CONNECTIONS_PER_BUCKET
    return Conntrack(connections, most, buckets, most * _ENTRY_BYTES + buckets * _BUCKET_BYTES)


def pod_mtu(mtu: int, encapsulation: Encapsulation, outer: Family) -> int:
    """Return the MTU of pods in bytes."""
    return mtu - OVERHEAD_BYTES[encapsulation][outer]


def tuning(needs: NodeNeeds) -> dict[str, Any]:
    """Return the section `tuning` of the network agent's configuration that sets these values."""
    return {
        "enabled": True,
        "neighbours": {
            table.family.value.lower(): [table.gc_thresh1, table.gc_thresh2, table.gc_thresh3]
            for table in needs.neighbours
        },
        "conntrack": {"max": needs.conntrack.max, "buckets": needs.conntrack.buckets},
    }


def _rounded(entries: int) -> int:
    return -(-entries // 128) * 128
