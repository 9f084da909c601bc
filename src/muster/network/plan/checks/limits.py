"""Rules about the limits of clouds: addresses, peerings, routes, CIDRs, blocks for each NIC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from muster.network.plan.checks.view import Site, View
from muster.network.plan.finding import Finding, Severity
from muster.network.plan.providers import LIMITS, Limit
from muster.network.plan.range import Family, parse_range
from muster.network.plan.request import ADDRESSES_PER_BLOCK

_BLOCKS: Final = "assign blocks of /28 to NICs: a block counts as one address"
_DUAL: Final = {
    "aws": "Amazon VPC User Guide, VPC CIDR blocks: IPv4 is required",
    "azure": "Azure, What is IPv6 for Azure Virtual Network?: a NIC needs an IPv4 configuration",
}
_AZURE_SUBNET: Final = 64
"""IPv6 subnets of Azure have exactly this prefix ("What is IPv6 for Azure Virtual Network?")."""


class _Use(NamedTuple):
    """How much of a limit is used now, and at the planned size."""

    now: int
    planned: int


def limits(found: View) -> Iterator[Finding]:
    """Yield limits of the provider that the estate exceeds now, or at the planned size."""
    limits_ = LIMITS.get(found.estate.provider)
    if limits_ is None:
        return
    source = limits_.source
    used = _addresses(found)
    peers = _peers(found)
    for network, use in used.items():
        what = f"addresses of the virtual network {network}"
        yield from _beyond("addresses", network, what, use, limits_.addresses, source, _fewer(found))
        group = [used[each] for each in {network, *peers.get(network, ())} if each in used]
        total = _Use(sum(each.now for each in group), sum(each.planned for each in group))
        if len(group) > 1:
            what = f"addresses of {network} and the networks that are peered with it"
            fix = "put some clusters into other regions, or connect them by a transit gateway"
            fix = "" if found.estate.provider == "azure" else fix
            yield from _beyond(
                "peered-addresses", network, what, total, limits_.peered_addresses, source, fix or _fewer(found)
            )
    for network, others in peers.items():
        number = _Use(len(others), len(others))
        what = f"peerings of {network}"
        fix = "connect more spokes by a transit gateway or a Virtual WAN, with separate route tables"
        yield from _beyond("peerings", network, what, number, limits_.peerings, source, fix)
    for site in found.sites:
        name, cluster = site.cluster.name, site.cluster
        if cluster.routes:
            number = _Use(cluster.routes, cluster.routes)
            fix = "use podNetwork native or overlay, so that nodes need no routes"
            yield from _beyond("routes", name, f"routes of {name}", number, limits_.routes, source, fix)
        yield from _cidrs(site, found)
        yield from _interfaces(site, found)
        yield from _families(site, found)


def _families(site: Site, found: View) -> Iterator[Finding]:
    """Yield address families with which the provider cannot connect the nodes, or their pods."""
    provider, native = found.estate.provider, found.estate.network == "native"
    problems: list[tuple[str, str, str]] = []
    if site.nodes and all(each.family is Family.V6 for each in site.nodes):
        problems.append(
            ("nodes have IPv6 alone, and a virtual network needs IPv4 too", "add IPv4 to families", _DUAL[provider])
        )
    if provider == "azure" and native and Family.V6 in {each.family for each in (*site.pods, *site.blocks)}:
        problems.append(
            (
                "pods have IPv6, and Azure assigns blocks of addresses to NICs for IPv4 only",
                "use podNetwork overlay, or IPv4 alone",
                "Azure, AKS: Azure CNI overlay, dual stack",
            )
        )
    for what, fix, source in problems:
        yield Finding(
            id="address-family",
            severity=Severity.ERROR,
            where=(site.cluster.name,),
            what=what,
            fix=fix,
            source=source,
        )


def _addresses(found: View) -> dict[str, _Use]:
    """Return the addresses that count, by virtual network."""
    used: dict[str, _Use] = {}
    for site in found.sites:
        cluster = site.cluster
        each = max(cluster.interfaces and _interfaces_for(site), 1)
        if found.estate.network == "native":
            each += _assigned(site)
        now = used.get(site.network, _Use(0, 0))
        planned = max(cluster.planned_nodes, cluster.nodes)
        used[site.network] = _Use(now.now + cluster.nodes * each, now.planned + planned * each)
    return used


def _assigned(site: Site) -> int:
    """Return what a node's pods count: blocks, or single addresses."""
    if site.cluster.addresses == "individual":
        return site.cluster.pods_per_node * len(site.families())
    return sum(_blocks(site) if family is Family.V4 else 1 for family in site.families())


def _blocks(site: Site) -> int:
    return max(site.cluster.blocks_per_node, -(-site.cluster.pods_per_node // ADDRESSES_PER_BLOCK))


def _interfaces_for(site: Site) -> int:
    number = _blocks(site) if site.cluster.addresses == "blocks" else site.cluster.pods_per_node
    return -(-number // max(site.cluster.addresses_per_interface - 1, 1))


def _interfaces(site: Site, found: View) -> Iterator[Finding]:
    """Yield clusters whose nodes cannot hold their pods' addresses."""
    cluster, limits_ = site.cluster, LIMITS[found.estate.provider]
    if found.estate.network != "native" or Family.V4 not in site.families():
        return
    number = _blocks(site) if cluster.addresses == "blocks" else cluster.pods_per_node
    unit = "blocks of /28" if cluster.addresses == "blocks" else "addresses"
    if cluster.interfaces and (most := cluster.interfaces * (cluster.addresses_per_interface - 1)) < number:
        yield Finding(
            id="interface-addresses",
            severity=Severity.ERROR,
            where=(cluster.name,),
            what=f"a node needs {number:,} {unit} for {cluster.pods_per_node:,} pods, and its {cluster.interfaces} "
            f"NICs hold {most:,}",
            fix="assign blocks (prefix delegation), lower podsPerNode, or choose a larger instance type",
            source="Amazon EC2 User Guide, Prefix delegation",
        )
    most_each = limits_.addresses_per_node
    if most_each is not None and number >= most_each:
        yield Finding(
            id="interface-addresses",
            severity=Severity.ERROR,
            where=(cluster.name,),
            what=f"a node needs {number:,} {unit} and one address of its own, and a machine holds {most_each}",
            fix="assign blocks of /28, or lower podsPerNode",
            source=limits_.source,
        )


def _cidrs(site: Site, found: View) -> Iterator[Finding]:
    limits_ = LIMITS[found.estate.provider]
    name = site.cluster.name
    if site.cluster.in_use:
        return
    if site.cluster.network_cidrs:
        cidrs = [parse_range(each) for each in site.cluster.network_cidrs]
    else:
        cidrs = [*site.nodes, *(site.pods if found.estate.network == "native" else ())]
    ours = [each for each in cidrs if each.family is Family.V4]
    if found.estate.provider == "azure":
        for small in (each for each in cidrs if each.family is Family.V6 and each.prefix > _AZURE_SUBNET):
            yield Finding(
                id="cidr-size",
                severity=Severity.ERROR,
                where=(name, str(small)),
                what=f"{small} is smaller than an IPv6 subnet of Azure, which is exactly a /{_AZURE_SUBNET}",
                fix=f"use a /{_AZURE_SUBNET} for each subnet",
                source="Azure, What is IPv6 for Azure Virtual Network?",
            )
    for each in ours:
        if not limits_.largest_cidr <= each.prefix <= limits_.smallest_cidr:
            yield Finding(
                id="cidr-size",
                severity=Severity.ERROR if site.cluster.network_cidrs else Severity.WARNING,
                where=(name, str(each)),
                what=f"{each} cannot be one CIDR of a virtual network: from /{limits_.largest_cidr} to "
                f"/{limits_.smallest_cidr} is possible",
                fix="divide it into several CIDRs",
                source=limits_.source,
            )
    if limits_.cidrs is not None and ours:
        number = _Use(len(ours), len(ours))
        fix = "plan fewer pods per node or fewer years, or divide the cluster"
        yield from _beyond("cidrs", name, f"IPv4 CIDRs of {name}", number, limits_.cidrs, limits_.source, fix)


def _peers(found: View) -> dict[str, set[str]]:
    """Return the virtual networks that each one is peered with."""
    networks = {site.cluster.name: site.network for site in found.sites}
    peers: dict[str, set[str]] = {}
    for peering in found.estate.peerings:
        first, second = (networks[each] for each in peering.clusters)
        if first != second:
            peers.setdefault(first, set()).add(second)
            peers.setdefault(second, set()).add(first)
    return peers


def _fewer(found: View) -> str:
    if any(site.cluster.addresses == "individual" for site in found.sites):
        return _BLOCKS
    return "divide the cluster, plan fewer nodes, or use an overlay"


def _beyond(id_: str, name: str, what: str, use: _Use, limit: Limit, source: str, fix: str) -> Iterator[Finding]:
    """Yield at most one finding about a limit."""
    if max(use.now, use.planned) <= limit.usual:
        return
    if use.now > limit.usual:
        number, when = use.now, "" if use.now == use.planned else " now"
    else:
        number, when = use.planned, " at the planned size"
    raisable = max(use.now, use.planned) <= limit.most and bool(limit.raise_by)
    yield Finding(
        id=f"limit-{id_}",
        severity=Severity.WARNING if raisable else Severity.ERROR,
        where=(name,),
        what=f"{number:,} {what}{when}, and the limit is {limit.usual:,}"
        + (f", at most {limit.most:,}" if limit.most > limit.usual else ""),
        fix=_raised(limit, fix) if raisable else fix,
        source=source,
    )


def _raised(limit: Limit, fix: str) -> str:
    """Return how to stay below a limit that can be raised. Blocks are better than a higher quota."""
    return f"{fix}; or {limit.raise_by}" if fix == _BLOCKS else limit.raise_by
