"""Makes one estate of several files and clusters, so that all of their ranges are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from muster.kube.errors import BadConfig
from muster.network.plan.clusters import Seen
from muster.network.plan.estate import Estate, EstateCluster, EstatePeering
from muster.network.plan.request import PodNetwork, Provider


def merge(
    estates: Sequence[tuple[str, Estate]],
    seen: Sequence[tuple[str, Seen]],
    provider: Provider | None,
    pod_network: PodNetwork | None,
) -> Estate:
    """Merge estates and clusters. Each name that is there more than once gets its file's name too.

    Args:
        estates: each with the file's name.
        seen: clusters that were read, each with the file's name.
        provider: as the user says; None: as the files say.
        pod_network: likewise.

    Raises:
        BadConfig: the files name different providers, or different ways of packets.
    """
    providers: set[Provider] = {estate.provider for _, estate in estates}
    providers |= {each.provider for _, each in seen if each.provider}
    networks: set[PodNetwork] = {estate.pod_network for _, estate in estates if estate.pod_network}
    if provider is None and len(providers) > 1:
        raise BadConfig(
            f"the clusters are on different providers ({', '.join(sorted(providers))}); choose with --provider whose "
            "limits count"
        )
    if pod_network is None and len(networks) > 1:
        raise BadConfig(
            f"the clusters have different pod networks ({', '.join(sorted(networks))}); choose one with --pod-network"
        )
    all_names = Counter(each.name for _, estate in estates for each in estate.clusters)
    all_names.update(each.cluster.name for _, each in seen)
    names = {name for name, number in all_names.items() if number > 1}
    clusters: list[EstateCluster] = []
    peerings: list[EstatePeering] = []
    for file, estate in estates:
        renamed = {each.name: _unused(each.name, file, names) for each in estate.clusters}
        clusters += [replace(each, name=renamed[each.name]) for each in estate.clusters]
        peerings += [EstatePeering((renamed[each.clusters[0]], renamed[each.clusters[1]])) for each in estate.peerings]
    for file, each in seen:
        clusters.append(replace(each.cluster, name=_unused(each.cluster.name, file, names)))
    # A node whose cluster gives it a block has pods that the network routes, or that an overlay carries.
    blocks = any(each.cluster.node_blocks for _, each in seen)
    return Estate(
        clusters=tuple(clusters),
        provider=provider or (providers.pop() if providers else "metal"),
        pod_network=pod_network or (networks.pop() if networks else "routes" if blocks else ""),
        supernets=tuple(dict.fromkeys(text for _, estate in estates for text in estate.supernets)),
        taken=tuple(dict.fromkeys(taken for _, estate in estates for taken in estate.taken)),
        peerings=tuple(peerings),
    )


def _unused(name: str, file: str, names: set[str]) -> str:
    number, found = 1, name
    while found in names:
        found = f"{name} of {file}" + (f" ({number})" if number > 1 else "")
        number += 1
    names.add(found)
    return found
