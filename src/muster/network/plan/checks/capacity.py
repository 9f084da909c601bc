"""Rules about room: ranges that are too small, too large for Kubernetes, or fragmented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from muster.network.plan.checks.view import Site, View
from muster.network.plan.finding import Finding, Severity
from muster.network.plan.range import Family, Range, aggregate, subtract
from muster.network.plan.sizing import (
    NODE_MASK_DIFFERENCE_MAX,
    RESERVED_IN_CLOUD,
    RESERVED_ON_METAL,
    SERVICE_BITS_MAX,
)
from muster.network.plan.space import Space

CIDRSET: Final = "kubernetes/kubernetes, pkg/controller/nodeipam/ipam/cidrset (clusterSubnetMaxDiff)"
SERVICES: Final = "kubernetes/kubernetes, cmd/kube-apiserver/app/options/validation.go"


def service_ranges(found: View) -> Iterator[Finding]:
    """Yield ranges of Services that kube-apiserver refuses, or that are full."""
    for site in found.sites:
        for each in site.services:
            if each.family.bits - each.prefix > SERVICE_BITS_MAX:
                yield Finding(
                    id="service-range-too-large",
                    severity=Severity.ERROR,
                    where=(site.cluster.name, str(each)),
                    what=f"the range of Services {each} is larger than kube-apiserver accepts",
                    fix=f"use at most /{each.family.bits - SERVICE_BITS_MAX}",
                    source=SERVICES,
                )
        for family in site.families():
            room = sum(each.size for each in site.services if each.family is family) - 2
            if room >= 0 and site.cluster.services > room:
                yield _full(site, "services", family, site.cluster.services, room, Severity.ERROR)


def node_masks(found: View) -> Iterator[Finding]:
    """Yield ranges of pods from which kube-controller-manager cannot give blocks to all nodes."""
    if found.estate.network == "native":
        return
    for site in found.sites:
        by_family = {family: aggregate(e for e in site.pods if e.family is family) for family in Family}
        for family, ranges in by_family.items():
            mask = _mask(site, family)
            if not mask or not ranges:
                continue
            other = site.cluster.allocator == "other"
            problem = ""
            if len(ranges) > 1:
                written = sum(1 for each in site.pods if each.family is family)
                problem = f"there are {written} ranges, and it accepts one for each family"
            elif mask < ranges[0].prefix:
                problem = f"a block of /{mask} is larger than the range {ranges[0]}"
            elif family is Family.V6 and mask - ranges[0].prefix > NODE_MASK_DIFFERENCE_MAX:
                problem = f"between {ranges[0]} and /{mask} there are more than {NODE_MASK_DIFFERENCE_MAX} bits"
            if problem:
                yield Finding(
                    id="node-mask",
                    severity=Severity.WARNING if other else Severity.ERROR,
                    where=(site.cluster.name,),
                    what=f"kube-controller-manager cannot give {family} blocks to nodes: {problem}",
                    fix="run it with --allocate-node-cidrs=false and use another allocator, such as AddressPools"
                    + ("" if len(ranges) > 1 else "; or change the range of pods or the node mask"),
                    source=CIDRSET,
                )


def mixed_masks(found: View) -> Iterator[Finding]:
    """Yield clusters whose nodes have blocks of different sizes.

    kube-controller-manager knows one size. With a changed one, it gives overlapping blocks
    (kubernetes/kubernetes 70957).
    """
    for site in found.sites:
        for family in Family:
            sizes = {each.prefix for each in site.blocks if each.family is family}
            if family is Family.V4 and site.cluster.previous_node_mask:
                sizes |= {site.cluster.previous_node_mask, site.cluster.node_mask_ipv4}
            if len(sizes) > 1:
                yield Finding(
                    id="node-masks-differ",
                    severity=Severity.WARNING if site.cluster.allocator == "other" else Severity.ERROR,
                    where=(site.cluster.name,),
                    what=f"nodes have {family} blocks of different sizes "
                    f"({', '.join(f'/{each}' for each in sorted(sizes))}), and kube-controller-manager can then give "
                    "one address to two nodes",
                    fix="recreate all nodes with one size in a new range of pods, or use another allocator, such as "
                    "AddressPools",
                    source="kubernetes/kubernetes 70957",
                )


def full(found: View) -> Iterator[Finding]:
    """Yield ranges of nodes and pods that have no room for the nodes of today, or for those that are planned."""
    native = found.estate.network == "native"
    reserved = RESERVED_ON_METAL if found.estate.provider == "metal" else RESERVED_IN_CLOUD
    for site in found.sites:
        cluster = site.cluster
        for family in () if cluster.in_use else site.families():
            nodes = [each for each in site.nodes if each.family is family]
            # Reserved addresses are counted once for each subnet, and a subnet is at least one range.
            rooms = [("nodes", sum(each.size for each in nodes) - reserved)] if nodes else []
            mask, pods = _mask(site, family), [each for each in site.pods if each.family is family]
            if mask and pods:
                number = cluster.blocks_per_node if family is Family.V4 else 1
                blocks = sum(each.size >> (family.bits - mask) for each in pods)
                edges = 2 if native and family is Family.V4 else 0
                rooms.append(("pods", (blocks - edges) // number))
            for use, room in rooms:
                for wanted, severity in (
                    (cluster.nodes, Severity.ERROR),
                    (cluster.planned_nodes, Severity.WARNING),
                ):
                    if wanted > room:
                        yield _full(site, use, family, wanted, room, severity)
                        break


def _full(site: Site, use: str, family: Family, wanted: int, room: int, severity: Severity) -> Finding:
    what = "Services" if use == "services" else "nodes"
    now = "are planned" if severity is Severity.WARNING else "are there now"
    return Finding(
        id="range-full",
        severity=severity,
        where=(f"{use} of {site.cluster.name}",),
        what=f"the {family} ranges of {use} have room for {max(room, 0):,} {what}, and {wanted:,} {now}",
        fix="add a range: muster network plan --previous keeps the present ones",
    )


def fragmented(found: View) -> Iterator[Finding]:
    """Yield supernets and ranges of pods with enough free addresses, but not in one piece.

    A cloud assigns whole blocks to NICs. Single addresses all over a subnet leave no whole block
    (aws/amazon-vpc-cni-k8s 2749).
    """
    used = [item.range for item in found.items]
    for supernet in aggregate(found.supernets):
        space = Space(supernet.family, [supernet], used)
        largest = space.largest
        inside = [item for item in found.items if item.cluster and supernet.contains(item.range)]
        for item in inside:
            if space.addresses >= item.range.size and (largest is None or largest.prefix > item.range.prefix):
                yield Finding(
                    id="fragmented",
                    severity=Severity.WARNING,
                    where=(str(supernet), str(item)),
                    what=f"{supernet} has {space.addresses:,} free addresses, but no free /{item.range.prefix}, so the "
                    f"{item} cannot double; the largest free range is {largest or 'none'}",
                    fix="free the small ranges between, or add a supernet",
                )
    for site in found.sites:
        yield from _fragmented_blocks(site)


def _fragmented_blocks(site: Site) -> Iterator[Finding]:
    taken = [*site.blocks, *site.used]
    if not taken or site.cluster.in_use:
        return
    for family in site.families():
        mask = _mask(site, family)
        for each in site.pods if mask else ():
            if each.family is not family or each.prefix > mask:
                continue
            free = subtract(each, taken)
            addresses = sum(part.size for part in free)
            whole = _whole_blocks(free, mask)
            possible = addresses >> (family.bits - mask)
            if possible and whole * 2 < possible:
                yield Finding(
                    id="fragmented",
                    severity=Severity.WARNING if whole else Severity.ERROR,
                    where=(site.cluster.name, str(each)),
                    what=f"{each} has {addresses:,} free addresses, enough for {possible:,} blocks of /{mask}, but "
                    f"only {whole:,} whole blocks are free",
                    fix="reserve a part of the range for blocks (AWS: subnet CIDR reservation), or use a new range",
                    source="aws/amazon-vpc-cni-k8s 2749",
                )


def _whole_blocks(free: Sequence[Range], mask: int) -> int:
    return sum(1 << (mask - part.prefix) for part in free if part.prefix <= mask)


def _mask(site: Site, family: Family) -> int:
    """The prefix length of a node's block: as written, else as the blocks have it if all agree."""
    written = site.cluster.node_mask(family)
    seen = {each.prefix for each in site.blocks if each.family is family}
    return written or (seen.pop() if len(seen) == 1 else 0)
