"""Requests for address plans, for tests."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from muster.network.plan.plan import Plan
from muster.network.plan.range import Family
from muster.network.plan.request import ClusterRequest, PlanRequest, Taken

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
V4, V6, BOTH = (Family.V4,), (Family.V6,), (Family.V4, Family.V6)
SUPERNETS = ("10.0.0.0/8", "fd12:3400::/24")
HUB = ClusterRequest("hub", nodes=20, pods_per_node=30, services=200, role="hub")


def cluster(name: str, nodes: int = 100, pods_per_node: int = 30, services: int = 200, **more: Any) -> ClusterRequest:
    return ClusterRequest(name, nodes, pods_per_node, services, **more)


def request(*spokes: ClusterRequest, **more: Any) -> PlanRequest:
    settings: Mapping[str, Any] = {"provider": "metal", "supernets": SUPERNETS, **more}
    return PlanRequest(clusters=(HUB, *spokes), **settings)


def networks(plan: Plan) -> list[Network]:
    """The plan's ranges, parsed by the standard library."""
    return [ipaddress.ip_network(each.cidr) for each in plan.ranges]


_ways = st.sampled_from(
    [("metal", ""), ("metal", "overlay"), ("aws", ""), ("aws", "overlay"), ("azure", ""), ("azure", "routes")]
)
_taken = st.builds(
    lambda first, prefix, reachable: Taken(
        str(ipaddress.ip_network((0x0A000000 + first, prefix), strict=False)), "office", reachable
    ),
    st.integers(0, 2**24 - 1),
    st.integers(12, 32),
    st.booleans(),
)


@st.composite
def plan_requests(draw: st.DrawFn, *, taken: bool = True) -> PlanRequest:
    """Requests of every provider, family and size. Most of them fit into the supernets."""
    sizes = st.tuples(st.integers(1, 6000), st.integers(1, 120), st.integers(1, 5000), st.floats(0, 1.5))
    spokes = [
        cluster(f"spoke-{number}", nodes, pods, services, growth_per_year=growth)
        for number, (nodes, pods, services, growth) in enumerate(draw(st.lists(sizes, max_size=5)))
    ]
    provider, network = draw(_ways)
    return request(
        *spokes,
        provider=provider,
        pod_network=network,
        families=draw(st.sampled_from([V4, V6, BOTH])),
        years=draw(st.integers(1, 4)),
        researchers=draw(st.integers(0, 3000)),
        taken=tuple(draw(st.lists(_taken, max_size=4))) if taken else (),
    )


def grown(asked: PlanRequest, factor: float) -> PlanRequest:
    """The request when every cluster has grown."""
    clusters = tuple(replace(each, nodes=max(int(each.nodes * factor), 1)) for each in asked.clusters)
    return replace(asked, clusters=clusters)
