"""Rules about the MTU of links, tunnels and learned paths of a node.

A packet that is too large for a routed link is answered by ICMP, and the sender learns the path's MTU. A bridge drops
it silently, and so does a tunnel whose outer packets may not be fragmented.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem
from muster.network.netlink.link import Link

CHECK: Final = "mtu"
OVERHEAD_BYTES: Final = {
    "vxlan": 50, "geneve": 50, "gretap": 38, "ipip": 20, "gre": 24, "sit": 20, "ip6tnl": 40, "wireguard": 60,
}  # fmt: skip
"""Bytes that a tunnel over IPv4 adds at least (ip6tnl: over IPv6)."""
PATHS_MAX: Final = 5
_MAIN: Final = 254

KINDS: Final = {
    (CHECK, "tunnel"): Kind(
        Severity.ERROR,
        "A tunnel's packets do not fit through the link below it",
        Fix(
            "Set the MTU of the pod network to that of the node's link less the tunnel's overhead, in the "
            "configuration of the CNI plugin. Then restart the pods, because they keep the MTU of their start.",
        ),
    ),
    (CHECK, "pod-links"): Kind(
        Severity.WARNING,
        "Links of pods have a larger MTU than the way out of the node",
        Fix(
            "Set the MTU of the pod network to the smallest one on its way, in the configuration of the CNI plugin. "
            "Until then pods depend on ICMP messages, which many firewalls drop.",
        ),
    ),
    (CHECK, "bridge"): Kind(
        Severity.WARNING,
        "Ports of one bridge have different MTUs, and a bridge drops what is too large for a port",
        Fix("Give all ports of the bridge one MTU, in the configuration of the CNI plugin."),
    ),
    (CHECK, "path"): Kind(
        Severity.WARNING,
        "Paths inside the network have a smaller MTU than the node's link",
        Fix(
            "A router or tunnel on the way has a smaller MTU. Raise it there, or lower the MTU of the nodes' links or "
            "of this route to it, on all nodes.",
            ("ip route list cache", "tracepath -n ADDRESS"),
        ),
    ),
}  # fmt: skip


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems."""
    yield from _tunnels(now)
    yield from _pod_links(now)
    yield from _bridges(now)
    yield from _paths(now)


def way_out(now: NodeEvidence) -> Link | None:
    """Return the link of the default route with the smallest MTU; None without a default route."""
    numbers = _ways_out(now)
    found = [link for link in now.links if link.number in numbers and link.up]
    return min(found, key=lambda link: link.mtu, default=None)


def _ways_out(now: NodeEvidence) -> set[int]:
    return {
        number
        for route in now.routes
        if route.table == _MAIN and route.destination in ("0.0.0.0/0", "::/0")
        for number in route.links
    }


def _tunnels(now: NodeEvidence) -> Iterator[Problem]:
    out = way_out(now)
    for link in now.links:
        overhead = OVERHEAD_BYTES.get(link.kind)
        if overhead is None or not link.up:
            continue
        below = now.link(link.peer) if link.peer and not link.peer_elsewhere else None
        below = below if below is not None else out
        if below is not None and below.number != link.number and link.mtu + overhead > below.mtu:
            yield Problem(
                CHECK, "tunnel", link.name,
                f"MTU {link.mtu} and {overhead} bytes of {link.kind} do not fit in MTU {below.mtu} of {below.name}",
                (
                    Measure(f"MTU of {link.name}", link.mtu, "bytes", "rtnetlink"),
                    Measure(f"overhead of {link.kind}", overhead, "bytes", "headers over IPv4"),
                    Measure(f"MTU of {below.name}", below.mtu, "bytes", "rtnetlink"),
                ),
            )  # fmt: skip


def _pod_links(now: NodeEvidence) -> Iterator[Problem]:
    """Compare host sides of pods with the tunnel that they use, else with the link of the default route."""
    tunnels = [link for link in now.links if link.kind in ("vxlan", "geneve", "ipip", "wireguard") and link.up]
    out = min(tunnels, key=lambda link: link.mtu) if tunnels else way_out(now)
    if out is None:
        return
    not_pods = _ways_out(now) | {link.peer for link in tunnels}  # a node may be a container whose uplink is a veth
    larger = [
        link
        for link in now.links
        if link.kind == "veth" and link.up and link.peer_elsewhere and link.mtu > out.mtu
        and link.number not in not_pods
    ]  # fmt: skip
    if larger:
        most = max(larger, key=lambda link: link.mtu)
        yield Problem(
            CHECK, "pod-links", out.name,
            f"{len(larger)} links of pods have up to MTU {most.mtu}, and {out.name} has {out.mtu}",
            (
                Measure(f"MTU of {most.name}", most.mtu, "bytes", "rtnetlink"),
                Measure(f"MTU of {out.name}", out.mtu, "bytes", "rtnetlink"),
            ),
        )  # fmt: skip


def _bridges(now: NodeEvidence) -> Iterator[Problem]:
    for bridge in now.links:
        if bridge.kind != "bridge":
            continue
        ports = [link for link in now.links if link.master == bridge.number and link.up]
        values = {link.mtu for link in ports}
        if len(values) > 1:
            least, most = min(ports, key=lambda link: link.mtu), max(ports, key=lambda link: link.mtu)
            yield Problem(
                CHECK, "bridge", bridge.name,
                f"{least.name} has MTU {least.mtu}, {most.name} has MTU {most.mtu}",
                (
                    Measure(f"MTU of {least.name}", least.mtu, "bytes", "rtnetlink"),
                    Measure(f"MTU of {most.name}", most.mtu, "bytes", "rtnetlink"),
                ),
            )  # fmt: skip


def _paths(now: NodeEvidence) -> Iterator[Problem]:
    """Report learned paths to private addresses. On the internet, small paths are normal."""
    small = []
    for each in now.exceptions:
        links = [link for number in each.links if (link := now.link(number)) is not None]
        if links and each.mtu < min(link.mtu for link in links) and _is_private(each.destination):
            small.append(each)
    if small:
        small.sort(key=lambda each: each.mtu)
        shown = ", ".join(f"{each.destination.split('/')[0]} ({each.mtu})" for each in small[:PATHS_MAX])
        measures = tuple(Measure(f"path to {each.destination}", each.mtu, "bytes", "rtnetlink") for each in small)
        yield Problem(CHECK, "path", "", f"{len(small)} paths are smaller: {shown}", measures[:PATHS_MAX])


def _is_private(destination: str) -> bool:
    return ipaddress.ip_network(destination, strict=False).is_private
