"""Rules about nodes' kernels and the paths between clusters: neighbour tables, conntrack, MTU, isolation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.network.plan.checks.view import View
from muster.network.plan.finding import Finding, Severity
from muster.network.plan.needs import CONNECTIONS_PER_POD, conntrack, neighbours, pod_mtu
from muster.network.plan.range import Family
from muster.network.plan.request import HUB

IPV6_MTU_MIN: Final = 1280
SYSCTL: Final = "Linux Documentation/networking/ip-sysctl"


def kernels(found: View) -> Iterator[Finding]:
    """Yield clusters whose neighbour or conntrack tables are too small for the planned nodes."""
    for site in found.sites:
        cluster = site.cluster
        nodes = max(cluster.nodes, cluster.planned_nodes)
        connections = cluster.connections_per_pod or CONNECTIONS_PER_POD
        if not nodes or not cluster.pods_per_node:
            continue
        for family in site.families() if cluster.gc_thresh3 else ():
            need = neighbours(family, found.estate.network, nodes, cluster.pods_per_node, connections)
            if cluster.gc_thresh3 < need.gc_thresh3:
                yield Finding(
                    id="neighbours",
                    severity=Severity.ERROR if cluster.gc_thresh3 < need.entries else Severity.WARNING,
                    where=(cluster.name,),
                    what=f"a node can have {need.entries:,} {family} neighbours, and gc_thresh3 is "
                    f"{cluster.gc_thresh3:,}; beyond it, the kernel drops packets to new neighbours",
                    fix=f"set gc_thresh1, gc_thresh2 and gc_thresh3 to {need.gc_thresh1}, {need.gc_thresh2} and "
                    f"{need.gc_thresh3}",
                    source=SYSCTL,
                )
        tracked = conntrack(cluster.pods_per_node, connections)
        if 0 < cluster.conntrack_max < tracked.connections * 2:
            yield Finding(
                id="conntrack",
                severity=Severity.ERROR if cluster.conntrack_max < tracked.connections else Severity.WARNING,
                where=(cluster.name,),
                what=f"a node can have {tracked.connections:,} connections, and nf_conntrack_max is "
                f"{cluster.conntrack_max:,}; beyond it, the kernel drops new connections",
                fix=f"set nf_conntrack_max to {tracked.max} and nf_conntrack_buckets to {tracked.buckets}",
                source="Linux Documentation/networking/nf_conntrack-sysctl",
            )


def mtus(found: View) -> Iterator[Finding]:
    """Yield clusters whose pods send packets that are too large, and clusters with different sizes."""
    seen: dict[int, list[str]] = {}
    for site in found.sites:
        cluster = site.cluster
        if not cluster.pod_mtu:
            continue
        seen.setdefault(cluster.pod_mtu, []).append(cluster.name)
        outer = Family.V6 if {each.family for each in site.nodes} == {Family.V6} else Family.V4
        most = pod_mtu(cluster.mtu, cluster.encapsulation, outer)
        if cluster.mtu and cluster.pod_mtu > most:
            yield Finding(
                id="mtu",
                severity=Severity.ERROR,
                where=(cluster.name,),
                what=f"pods send packets of {cluster.pod_mtu} bytes, and the network of nodes carries {most} "
                f"({cluster.mtu} without {cluster.encapsulation})",
                fix=f"set the MTU of pods to {most}",
            )
        if Family.V6 in site.families() and cluster.pod_mtu < IPV6_MTU_MIN:
            yield Finding(
                id="mtu",
                severity=Severity.ERROR,
                where=(cluster.name,),
                what=f"the MTU of pods is {cluster.pod_mtu}, and IPv6 needs {IPV6_MTU_MIN}",
                fix="raise the MTU of the nodes' network",
                source="RFC 8200, section 5",
            )
    if len(seen) > 1:
        sizes = "; ".join(f"{mtu}: {', '.join(names)}" for mtu, names in sorted(seen.items()))
        yield Finding(
            id="mtu-differs",
            severity=Severity.WARNING,
            where=tuple(name for names in seen.values() for name in names),
            what=f"pods have different MTUs ({sizes}); connections between them hang if a firewall drops ICMP",
            fix="allow ICMP 'fragmentation needed' and ICMPv6 'packet too big' on the path, or use one MTU",
            source="RFC 1191, RFC 8201",
        )


def isolation(found: View) -> Iterator[Finding]:
    """Yield spokes that can reach each other."""
    roles = {site.cluster.name: site.cluster.role for site in found.sites}
    if HUB not in roles.values():
        return
    for peering in found.estate.peerings:
        first, second = peering.clusters
        if first != second and roles[first] != HUB and roles[second] != HUB:
            yield Finding(
                id="spokes-connected",
                severity=Severity.ERROR,
                where=(first, second),
                what=f"the spokes {first} and {second} are peered with each other",
                fix="remove the peering; researchers reach both through the hub",
            )
    networks: dict[str, list[str]] = {}
    for site in found.sites:
        if site.cluster.role != HUB:
            networks.setdefault(site.network, []).append(site.cluster.name)
    for network, names in networks.items():
        if len(names) > 1:
            yield Finding(
                id="spokes-connected",
                severity=Severity.WARNING,
                where=tuple(names),
                what=f"the spokes {', '.join(names)} are in one virtual network, {network}",
                fix="give each its own network; firewalls alone separate them now",
            )
