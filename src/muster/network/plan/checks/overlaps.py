"""Rules about ranges that share addresses, or that have a special meaning.

Two CIDRs that share an address are equal, or one contains the other. Both directions are found: submariner-operator
once compared only one of them (submariner-io/submariner-operator 182).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from muster.network.plan.checks.view import Item, Site, View
from muster.network.plan.finding import Finding, Severity
from muster.network.plan.range import Range
from muster.network.plan.reserved import PRIVATE, RESERVED, Reserved

_NAMED_MAX: Final = 10
_PLACED: Final = frozenset({"nodes", "pods"})


def overlapping(found: View) -> Iterator[Finding]:
    """Yield uses whose ranges share addresses, except pods that a cloud places in the subnets of nodes."""
    networks = {site.cluster.name: site.network for site in found.sites}
    pairs: dict[tuple[str, str, str, str], list[tuple[Item, Item]]] = {}
    open_: list[Item] = []
    for item in sorted(found.items):
        while open_ and not open_[-1].range.overlaps(item.range):
            open_.pop()
        for outer in open_:
            if not _shared(found, networks, outer, item):
                pairs.setdefault((*outer[1:3], *item[1:3]), []).append((outer, item))
        open_.append(item)
    for of_uses in pairs.values():
        yield _overlap(of_uses)


def _shared(found: View, networks: dict[str, str], outer: Item, inner: Item) -> bool:
    """Return whether one network gives out both, so that no address is used twice."""
    if not outer.cluster and not inner.cluster:
        return True
    if outer.cluster == inner.cluster and outer.use == inner.use:
        return outer.range != inner.range and outer.use in _PLACED and found.estate.network == "native"
    same = outer.cluster and inner.cluster and networks[outer.cluster] == networks[inner.cluster]
    return bool(same) and found.estate.network == "native" and {outer.use, inner.use} <= _PLACED


def _overlap(pairs: list[tuple[Item, Item]]) -> Finding:
    outer, inner = pairs[0]
    services = outer.use == inner.use == "services" and outer.cluster != inner.cluster
    relation = "have the same range as" if outer.range == inner.range else "contain"
    more = f", and {len(pairs) - 1} more pairs of them overlap" if len(pairs) > 1 else ""
    return Finding(
        id="overlap",
        severity=Severity.WARNING if services else Severity.ERROR,
        where=tuple(dict.fromkeys(str(item) for pair in pairs[:_NAMED_MAX] for item in pair)),
        what=f"the {outer} {relation} the {inner}{more}",
        fix="researchers can reach one of the two only; give each cluster its own range of Services"
        if services
        else "move one of them to a free range: muster network plan finds one",
    )


def duplicate_blocks(found: View) -> Iterator[Finding]:
    """Yield clusters where two nodes have overlapping blocks, or a block outside the ranges of pods."""
    for site in found.sites:
        twice = [(first, second) for first, second in pairwise(sorted(site.blocks)) if first.overlaps(second)]
        if twice:
            named = ", ".join(f"{first} and {second}" for first, second in twice[:_NAMED_MAX])
            yield Finding(
                id="blocks-overlap",
                severity=Severity.ERROR,
                where=(site.cluster.name,),
                what=f"{len(twice)} pair{'s' if len(twice) > 1 else ''} of blocks of nodes overlap: {named}",
                fix="drain and recreate one node of each pair; run only one allocator of blocks",
            )
        yield from _outside(site)


def _outside(site: Site) -> Iterator[Finding]:
    families = {each.family for each in site.pods}
    strays = [
        block
        for block in site.blocks
        if block.family in families and not any(whole.contains(block) for whole in site.pods)
    ]
    if strays:
        yield Finding(
            id="block-outside",
            severity=Severity.ERROR,
            where=(site.cluster.name,),
            what=f"blocks of nodes are outside of the ranges of pods: {_texts(strays)}",
            fix="add their range to podRanges, or recreate these nodes",
        )


def reserved(found: View) -> Iterator[Finding]:
    """Yield uses whose ranges include addresses with a special meaning, or public ones."""
    provider = found.estate.provider
    hits: dict[Reserved | None, list[Item]] = {}
    for item in found.items:
        if not item.cluster:
            continue
        for special in RESERVED:
            ours = special.provider in ("", provider) and special.use in ("", item.use)
            if ours and special.range.overlaps(item.range):
                hits.setdefault(special, []).append(item)
        if not any(private.contains(item.range) for private in PRIVATE) and not _special(item.range):
            hits.setdefault(None, []).append(item)
    for special_, items in hits.items():
        yield _reserved(special_, items)


def _reserved(special: Reserved | None, items: list[Item]) -> Finding:
    others = len(items) - 1
    more = f" and {others} more range{'s' if others > 1 else ''}" if others else ""
    have = "have" if others else "has"
    where = tuple(map(str, items[:_NAMED_MAX]))
    if special is None:
        return Finding(
            id="public-range",
            severity=Severity.WARNING,
            where=where,
            what=f"the range {items[0]}{more} {have} public addresses; hosts of the Internet that have them are not "
            "reachable",
            fix="use private ranges (RFC 1918, RFC 4193), unless these addresses are yours",
        )
    return Finding(
        id="reserved-range",
        severity=Severity.ERROR if special.error else Severity.WARNING,
        where=where,
        what=f"the range {items[0]}{more} {have} addresses of {special.range}: {special.what}",
        fix=f"choose a range that does not overlap {special.range}",
        source="IANA special-purpose address registries; documentation of Docker, Azure and AKS",
    )


def _special(range_: Range) -> bool:
    return any(each.range.contains(range_) for each in RESERVED)


def _texts(ranges: list[Range]) -> str:
    more = f" and {len(ranges) - _NAMED_MAX} more" if len(ranges) > _NAMED_MAX else ""
    return ", ".join(map(str, ranges[:_NAMED_MAX])) + more
