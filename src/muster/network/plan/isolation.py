"""Connects each spoke with the hub and with no other spoke: peerings, routes, firewall rules, NetworkPolicies.

Four layers separate spokes. There is no peering between them. A spoke's routes lead to the hub's ranges only, and the
rest of the planned space is dropped. The hub forwards nothing between spokes. Firewalls and NetworkPolicies deny the
planned space except the cluster's own ranges and the hub's. These rules name no other spoke, so that a new spoke
changes nothing in the existing ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.network.plan.plan import DROP, GATEWAY, LOCAL, FirewallRule, Peering, Route
from muster.network.plan.range import ALL, Family, Range, aggregate
from muster.network.plan.request import HUB, PlanRequest, Use

POLICY: Final = "muster-hub-and-spoke"
DESCRIPTION: Final = (
    "Denies other spokes in a namespace that has no other NetworkPolicy. NetworkPolicies only add permissions: in a "
    "namespace that denies by default, this one allows all namespaces and the Internet. Do not apply it there."
)
"""The well-known annotation kubernetes.io/description of each policy."""


class Sites(NamedTuple):
    """Who has which ranges.

    Attributes:
        ranges: by cluster and use.
        reachable: ranges outside the plan to which pods may connect.
        space: the planned space: supernets, and ranges outside of them that were kept.
        denied: ranges that pods of a spoke must not reach, except its own and the hub's: the planned space, and taken
            ranges that are not reachable.
    """

    ranges: Mapping[str, Mapping[Use, Sequence[Range]]]
    reachable: Sequence[Range]
    space: Sequence[Range]
    denied: Sequence[Range]

    def all_of(self, cluster: str) -> list[Range]:
        """Return the aggregated ranges of a cluster, for all uses."""
        return aggregate(each for ranges in self.ranges[cluster].values() for each in ranges)


def peerings(request: PlanRequest) -> list[Peering]:
    """Return one peering for each spoke."""
    hub = hub_of(request)
    researchers = request.researchers > 0
    return [
        Peering(peering_name(hub, name), hub, name, forwarded_traffic=False, gateway_transit=researchers)
        for name in spokes_of(request)
    ]


def routed(request: PlanRequest) -> frozenset[Use]:
    """Return the uses whose addresses other networks can route to.

    Addresses of Services exist only in the rules of nodes. On metal a router can send them to any node of the cluster;
    a cloud's network cannot. Pods of an overlay have addresses that exist only inside of it.
    """
    uses: set[Use] = {"nodes", "researchers"}
    if request.network != "overlay":
        uses.add("pods")
    if request.provider == "metal":
        uses.add("services")
    return frozenset(uses)


def routes(request: PlanRequest, sites: Sites) -> list[Route]:
    """Return the routes of every cluster."""
    hub, uses = hub_of(request), routed(request)
    targets = {
        name: aggregate(each for use, ranges in by_use.items() if use in uses for each in ranges)
        for name, by_use in sites.ranges.items()
    }
    found: list[Route] = []
    for cluster in (hub, *spokes_of(request)):
        peers = {name: peering_name(hub, name) for name in spokes_of(request)} if cluster == hub else {hub: ""}
        via = {str(each): LOCAL for each in targets[cluster]}
        for peer, name in peers.items():
            via |= {str(each): name or peering_name(hub, cluster) for each in targets[peer]}
        via |= {str(each): GATEWAY for each in aggregate(sites.reachable)}
        # AWS has no route of a VPC that drops. Its router drops what no route matches.
        if request.provider != "aws":
            via = {str(each): DROP for each in sites.denied} | via
        found += [Route(cluster, destination, name) for destination, name in via.items()]
    return found


def firewall_rules(request: PlanRequest, sites: Sites) -> list[FirewallRule]:
    """Return the firewall rules of every cluster."""
    hub = hub_of(request)
    space = _texts(sites.space)
    hubs, outside = _texts(sites.all_of(hub)), _texts(aggregate(sites.reachable))
    found: list[FirewallRule] = []
    others = tuple(text for spoke in spokes_of(request) for text in _texts(sites.all_of(spoke)))
    found.append(FirewallRule(hub, "in", 100, "allow", hubs, hubs, "inside the hub"))
    if others:
        found += [
            FirewallRule(hub, "in", 110, "allow", space, hubs, "spokes may use what the hub offers"),
            FirewallRule(hub, "out", 110, "allow", hubs, space, "the hub reaches every spoke"),
            FirewallRule(hub, "forward", 90, "deny", space, space, "spokes never reach each other"),
            # Researchers have addresses of the hub. Their packets start here, so this comes before the rule above.
            FirewallRule(hub, "forward", 80, "allow", hubs, space, "researchers reach every spoke"),
        ]
    for spoke in spokes_of(request):
        own = _texts(sites.all_of(spoke))
        allowed = (*own, *hubs)
        found += [
            FirewallRule(spoke, "in", 100, "allow", allowed, own, "from the cluster itself, and from the hub"),
            FirewallRule(spoke, "in", 200, "deny", space, own, "spokes never reach each other"),
            FirewallRule(
                spoke, "out", 100, "allow", own, (*allowed, *outside), "to the cluster itself, and to the hub"
            ),
            FirewallRule(
                spoke, "out", 200, "deny", own, _texts(sites.denied), "spokes never reach each other, or what is taken"
            ),
            FirewallRule(spoke, "forward", 100, "deny", space, space, "a spoke forwards for no other network"),
        ]
    return sorted(found, key=lambda rule: (rule.cluster != hub, rule.cluster, rule.direction, rule.priority))


def network_policies(request: PlanRequest, sites: Sites, cluster: str) -> list[dict[str, Any]]:
    """Return the NetworkPolicies of a cluster, one for each namespace of the request. The hub needs none.

    A NetworkPolicy cannot deny. It selects all pods of the namespace, and allows everything except what is denied. So
    it narrows an open namespace, and would open one that denies by default.

    Peers of the same cluster are named by a selector too, because some CNIs do not apply ipBlock to pods (KEP and
    documentation of NetworkPolicy: "ipBlock ... should be cluster-external IPs").
    """
    if cluster == hub_of(request):
        return []
    own, hub = sites.all_of(cluster), sites.all_of(hub_of(request))
    blocks = [{"ipBlock": {"cidr": str(each)}} for each in aggregate((*own, *hub))]
    outside = [{"ipBlock": {"cidr": str(each)}} for each in aggregate(sites.reachable)]
    world = [peer for family in request.families for peer in _world(family, sites.denied)]
    peers: list[dict[str, Any]] = [{"namespaceSelector": {}}, *blocks]
    names = next(each.namespaces for each in request.clusters if each.name == cluster)
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": POLICY,
                "namespace": namespace,
                "annotations": {"kubernetes.io/description": DESCRIPTION},
            },
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [*peers, *world]}],
                "egress": [{"to": [*peers, *outside, *world]}],
            },
        }
        for namespace in names
    ]


def _world(family: Family, ranges: Iterable[Range]) -> list[dict[str, Any]]:
    """Return the peer of everything except the ranges; none if nothing is left (exceptions must be smaller)."""
    denied = [each for each in ranges if each.family is family]
    if denied == [ALL[family]]:
        return []
    return [{"ipBlock": {"cidr": str(ALL[family]), "except": [str(each) for each in denied]}}]


def hub_of(request: PlanRequest) -> str:
    """Return the name of the hub."""
    return next(cluster.name for cluster in request.clusters if cluster.role == HUB)


def spokes_of(request: PlanRequest) -> list[str]:
    """Return the names of the spokes, in the order of the request."""
    return [cluster.name for cluster in request.clusters if cluster.role != HUB]


def peering_name(hub: str, spoke: str) -> str:
    """Return the name of the peering of a spoke."""
    return f"{hub}--{spoke}"


def _texts(ranges: Iterable[Range]) -> tuple[str, ...]:
    return tuple(str(each) for each in ranges)
