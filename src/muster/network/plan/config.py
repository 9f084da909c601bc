"""Reads the request for a plan from YAML. Each error names the line, the field's path, and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from muster.api.configtext import ConfigText, ConfigTextError, place_text
from muster.api.marked import Place
from muster.network.plan.kinds import Kind, compose, kind_of
from muster.network.plan.range import ALL, Range, RangeError, parse_range
from muster.network.plan.request import HUB, PlanRequest, PreviousRange

PAGE: Final = "docs/network-plan.md"
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1123), as names of namespaces."""
NODES_MAX: Final = 1_000_000
PODS_PER_NODE_MAX: Final = 4096
SERVICES_MAX: Final = 1 << 20
CLUSTERS_MAX: Final = 1000
CONNECTIONS_MAX: Final = 1 << 29
"""nf_conntrack_max is an int, and the plan doubles this number."""
YEARS_MAX: Final = 20
GROWTH_MAX: Final = 20.0
MTU_MIN: Final = 1280
_INSTEAD: Final = {
    Kind.PLAN: "give it as --previous, and the request for the next plan as FILE",
    Kind.ESTATE: f"muster network check reads it; a request has supernets, and no ranges of clusters (see {PAGE})",
    Kind.KUBECONFIG: f"muster network check reads it; write a request for a plan (see {PAGE})",
    Kind.EMPTY: f"write provider, supernets and clusters (see {PAGE})",
}


def parse_request(text: str, file: str = "", previous: tuple[PreviousRange, ...] = ()) -> PlanRequest:
    """Parse the text, and add ranges of an earlier plan. Raises ConfigTextError with every problem."""
    root = compose(text, file)
    kind = kind_of(root)
    if kind in _INSTEAD:
        raise ConfigTextError(f"{place_text(Place(1, 1), file)}this is {kind}; {_INSTEAD[kind]}")
    read = ConfigText(root, PlanRequest, PAGE, file)
    request = replace(read.value, previous=(*read.value.previous, *previous))
    read.check(_problems(request))
    return request


def _problems(request: PlanRequest) -> Iterator[tuple[str, str]]:
    yield from _sizes(request)
    yield from _clusters(request)
    yield from _ranges(request)


def _sizes(request: PlanRequest) -> Iterator[tuple[str, str]]:
    if not request.families or len(set(request.families)) < len(request.families):
        yield "$.families", "write IPv4, IPv6, or both once"
    if not 1 <= request.years <= YEARS_MAX:
        yield "$.years", f"{request.years} is not possible; write 1 to {YEARS_MAX}"
    if request.researchers < 0:
        yield "$.researchers", f"{request.researchers} is not possible; write 0 or more"
    if request.mtu and not MTU_MIN <= request.mtu <= 65_535:
        yield "$.mtu", f"{request.mtu} is not possible; write {MTU_MIN} to 65535"
    if request.network == "overlay" and request.encapsulated == "none":
        yield "$.encapsulation", "an overlay encapsulates packets; write vxlan, geneve, ipip or wireguard"
    if request.provider == "metal" and request.network == "native":
        yield "$.podNetwork", "only clouds assign blocks to NICs; write routes or overlay"
    yield from _growth("$.growthPerYear", request.growth_per_year)


def _growth(path: str, growth: float) -> Iterator[tuple[str, str]]:
    if not 0 <= growth <= GROWTH_MAX:
        yield path, f"{growth:g} is not possible; write 0 to {GROWTH_MAX:g}, 0.5 for half as many again each year"


def _clusters(request: PlanRequest) -> Iterator[tuple[str, str]]:
    hubs = [cluster.name for cluster in request.clusters if cluster.role == HUB]
    if len(hubs) != 1:
        yield "$.clusters", f"there are {len(hubs)} hubs; give exactly one cluster the role hub"
    if len(request.clusters) > CLUSTERS_MAX:
        yield "$.clusters", f"there are {len(request.clusters)} clusters; at most {CLUSTERS_MAX} can be planned"
    seen: set[str] = set()
    for index, cluster in enumerate(request.clusters):
        at = f"$.clusters[{index}]"
        if not LABEL.fullmatch(cluster.name):
            yield f"{at}.name", f"{cluster.name!r} is not a name; write lower-case letters, digits and dashes"
        if cluster.name in seen:
            yield f"{at}.name", f"{cluster.name!r} is the name of another cluster; choose a different one"
        seen.add(cluster.name)
        for field, value, limit in (
            ("nodes", cluster.nodes, NODES_MAX),
            ("podsPerNode", cluster.pods_per_node, PODS_PER_NODE_MAX),
            ("services", cluster.services, SERVICES_MAX),
            ("connectionsPerPod", cluster.connections_per_pod, 10_000_000),
        ):
            if not 1 <= value <= limit:
                yield f"{at}.{field}", f"{value} is not possible; write 1 to {limit}"
        if cluster.pods_per_node * cluster.connections_per_pod > CONNECTIONS_MAX:
            yield f"{at}.connectionsPerPod", f"a node cannot track more than {CONNECTIONS_MAX} connections; lower it"
        for field, value in (
            ("interfaces", cluster.interfaces),
            ("addressesPerInterface", cluster.addresses_per_interface),
        ):
            if not 0 <= value <= PODS_PER_NODE_MAX:
                yield f"{at}.{field}", f"{value} is not possible; write 0 to {PODS_PER_NODE_MAX}"
        if (cluster.interfaces == 0) != (cluster.addresses_per_interface == 0) or cluster.addresses_per_interface == 1:
            yield f"{at}.interfaces", "write both interfaces and addressesPerInterface (2 or more), or neither"
        if cluster.growth_per_year is not None:
            yield from _growth(f"{at}.growthPerYear", cluster.growth_per_year)
        for number, namespace in enumerate(cluster.namespaces):
            if not LABEL.fullmatch(namespace):
                yield f"{at}.namespaces[{number}]", f"{namespace!r} cannot be the name of a namespace"


def _ranges(request: PlanRequest) -> Iterator[tuple[str, str]]:
    supernets: list[Range] = []
    for index, text in enumerate(request.supernets):
        found, problem = _parsed(text)
        if found is None or found == ALL[found.family]:
            yield f"$.supernets[{index}]", problem or "is the whole address space; write the ranges that are yours"
        else:
            supernets.append(found)
    for family in request.families:
        if supernets and all(each.family is not family for each in supernets):
            yield "$.supernets", f"holds no {family} range; add one, or remove {family} from families"
    if not request.supernets:
        yield "$.supernets", "is empty; write the ranges that the plan may use, such as 10.0.0.0/8"
    taken: list[tuple[Range, str]] = []
    for index, each in enumerate(request.taken):
        found, problem = _parsed(each.cidr)
        if found is None:
            yield f"$.taken[{index}].cidr", problem
        else:
            taken.append((found, each.name or str(found)))
    yield from _previous(request, taken)


def _previous(request: PlanRequest, taken: list[tuple[Range, str]]) -> Iterator[tuple[str, str]]:
    names = {cluster.name for cluster in request.clusters}
    kept: list[tuple[Range, str]] = []
    for index, each in enumerate(request.previous):
        at = f"$.previous[{index}]"
        found, problem = _parsed(each.cidr)
        if found is None:
            yield f"{at}.cidr", problem
            continue
        if each.node_mask and not found.prefix <= each.node_mask <= found.family.bits:
            yield f"{at}.nodeMask", f"a block of /{each.node_mask} is not inside of {found}; leave it out"
        if each.grows_to:
            room, problem = _parsed(each.grows_to)
            if room is None or not room.contains(found):
                yield f"{at}.growsTo", problem or f"does not contain {found}; leave it out"
        if each.cluster not in names:
            continue  # The cluster is gone: its ranges are free.
        if found.family not in request.families:
            yield f"{at}.cidr", f"is {found.family}; add {found.family} to families, or remove this range"
        clash = next((name for other, name in (*kept, *taken) if other.overlaps(found)), None)
        if clash is not None:
            yield f"{at}.cidr", f"{found} overlaps {clash}; a plan cannot keep both, remove one"
        kept.append((found, f"{each.use} of {each.cluster}, {found}"))


def _parsed(text: str) -> tuple[Range | None, str]:
    try:
        return parse_range(text), ""
    except RangeError as error:
        return None, str(error)
