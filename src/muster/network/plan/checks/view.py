"""The ranges of an estate, parsed once for all rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from muster.network.plan.estate import Estate, EstateCluster
from muster.network.plan.range import Family, Range, aggregate, parse_range

ItemUse = Literal["nodes", "pods", "services", "researchers", "taken"]


class Item(NamedTuple):
    """A range and who uses it. `cluster` is "" for a range outside of clusters, named by `name`."""

    range: Range
    cluster: str
    use: ItemUse
    name: str

    def __str__(self) -> str:
        """The item for messages."""
        return f"{self.use} of {self.cluster} ({self.range})" if self.cluster else f"{self.name} ({self.range})"


class Site(NamedTuple):
    """The parsed ranges of one cluster."""

    cluster: EstateCluster
    nodes: tuple[Range, ...]
    pods: tuple[Range, ...]
    services: tuple[Range, ...]
    researchers: tuple[Range, ...]
    blocks: tuple[Range, ...]
    used: tuple[Range, ...]

    @property
    def network(self) -> str:
        """The name of its network at the provider."""
        return self.cluster.virtual_network or self.cluster.name

    def families(self) -> list[Family]:
        """Return the families that the cluster uses."""
        used = {each.family for each in (*self.nodes, *self.pods, *self.services, *self.blocks)}
        return [family for family in Family if family in used]


class View(NamedTuple):
    """An estate with parsed ranges.

    Attributes:
        items: every range once.
    """

    estate: Estate
    sites: tuple[Site, ...]
    supernets: tuple[Range, ...]
    items: tuple[Item, ...]


def view(estate: Estate) -> View:
    """Parse the ranges of an estate."""
    sites = tuple(
        Site(
            cluster,
            _parsed(cluster.node_ranges),
            _parsed(cluster.pod_ranges),
            _parsed(cluster.service_ranges),
            _parsed(cluster.researcher_ranges),
            _parsed(cluster.node_blocks),
            _parsed(cluster.used),
        )
        for cluster in estate.clusters
    )
    taken = (Item(parse_range(each.cidr), "", "taken", each.name or "a taken range") for each in estate.taken)
    items = (*(item for site in sites for item in _items(site)), *taken)
    return View(estate, sites, _parsed(estate.supernets), items)


def _items(site: Site) -> Iterator[Item]:
    """Yield the ranges of a cluster. Blocks of nodes count as pods, unless they are inside a range of pods."""
    pods = aggregate(site.pods)
    outside = [each for each in aggregate(site.blocks) if not any(whole.contains(each) for whole in pods)]
    uses: tuple[tuple[ItemUse, tuple[Range, ...]], ...] = (
        ("nodes", site.nodes),
        ("pods", (*site.pods, *outside)),
        ("services", site.services),
        ("researchers", site.researchers),
    )
    for use, ranges in uses:
        for each in ranges:
            yield Item(each, site.cluster.name, use, "")


def _parsed(texts: tuple[str, ...]) -> tuple[Range, ...]:
    return tuple(map(parse_range, texts))
