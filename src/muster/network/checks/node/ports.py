"""Rules about local ports: each connection to one address and port needs another one.

The kernel's own range limits connections of the host, and of masqueraded pods. A cloud may give a node fewer ports for
connections to public addresses: Azure's load balancer gives 1024 by default.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.network.checks.node.evidence import Connections, NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

CHECK: Final = "snat"
KINDS: Final = {
    (CHECK, "local-ports"): Kind(
        Severity.WARNING,
        "Connections to one destination use nearly all local ports",
        Fix(
            "Let programs keep connections open and share them. Widen net.ipv4.ip_local_port_range, or use more "
            "source or destination addresses.",
            ('sysctl -w net.ipv4.ip_local_port_range="15000 64000"',),
        ),
    ),
    (CHECK, "cloud-ports"): Kind(
        Severity.WARNING,
        "Connections to a public address use nearly all ports that the cloud gives this node",
        Fix(
            "Use a NAT gateway or a private endpoint for this destination, or give the outbound rule of the load "
            "balancer more ports for each node.",
        ),
    ),
}


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems, one for each destination."""
    for each in now.connections:
        address = ipaddress.ip_address(each.remote)
        if address.is_loopback:
            continue
        if now.ports and 100 * each.count >= settings.near_percent * now.ports:
            yield _problem("local-ports", each, now.ports, "ip_local_port_range")
        limit = settings.cloud_ports
        if limit and address.is_global and 100 * each.count >= settings.near_percent * limit:
            yield _problem("cloud-ports", each, limit, "cloudPorts")


def _problem(code: str, each: Connections, limit: int, source: str) -> Problem:
    where = f"[{each.remote}]:{each.port}" if ":" in each.remote else f"{each.remote}:{each.port}"
    measures = (
        Measure(f"connections to {where}", each.count, "", "/proc/net/tcp"),
        Measure("ports", limit, "", source),
    )
    return Problem(CHECK, code, where, f"{each.count} connections to {where}, and {limit} ports", measures)
