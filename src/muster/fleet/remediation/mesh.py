"""The mesh of agents, seen from the controller: who is in it, and whose fault it is where nodes reach nobody.

Agents look at a few others each (fleet/health/peers.py) from a list that stands in the ConfigMap `muster-mesh`. What
one says of another is no evidence; all of it together is (fleet/health/mesh.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.fleet.health.finding import Finding
from muster.fleet.health.mesh import Report, findings, judge
from muster.fleet.health.peers import Member
from muster.kube.node import Node

CONFIG_MAP = "muster-mesh"
KEY = "members.json"
BYTES_MAX = 900_000
"""A ConfigMap holds 1 MiB (Kubernetes docs, "ConfigMaps"): some ten thousand nodes."""
FRESH_S = 400.0
"""Agents write at least every five minutes: who has not is not believed, good or bad."""
SETTLE_S = 30.0
"""What is behind a switch is missed one by one: agents look every 15 s at moments of their own, and say what they have
seen twice (agent/checks/reach.py). Until then the first of them looks as if it alone were at fault."""


def members_of(nodes: Iterable[Node]) -> tuple[Member, ...]:
    """Return the nodes that can be looked at, by name, with the zone and rack that their labels name."""
    found = []
    for node in nodes:
        address = next((each.address for each in node.status.addresses if each.type == "InternalIP"), "")
        labels = node.metadata.labels
        domains = tuple(labels[key] for key in (LABEL_ZONE, LABEL_RACK) if labels.get(key))
        if address:
            found.append(Member(node.name, address, domains))
    return tuple(sorted(found, key=lambda member: member.name))


def text_of(members: Iterable[Member]) -> str:
    """Return the list as agents read it; "" where it is too long to be kept."""
    encoded = msgspec.json.encode(list(members))
    return encoded.decode() if len(encoded) <= BYTES_MAX else ""


class Mesh:
    """What the mesh says of nodes, as findings that begin when it first said so."""

    def __init__(self) -> None:
        self._said: dict[str, Finding] = {}

    def judge(self, members: tuple[Member, ...], reports: Mapping[str, Report], now: float) -> dict[str, Finding]:
        """Return the finding of each node that is at fault, once it has been so for a while, or behind what is."""
        said: dict[str, Finding] = {}
        missed_s: dict[str, float] = {}
        for report in reports.values():
            for name, seen_s in report.missed_s.items():
                missed_s[name] = max(seen_s, missed_s.get(name, seen_s))
        if any(report.unreached for report in reports.values()):
            for name, finding in findings(judge(members, reports, now, FRESH_S), members, now).items():
                before = self._said.get(name)
                same = before is not None and before.key == finding.key
                said[name] = msgspec.structs.replace(
                    finding,
                    first_s=before.first_s if before is not None and same else finding.first_s,
                    # As agents go on saying it for minutes after it is over, a test that came since says more.
                    last_s=min(now, missed_s.get(name, now)),
                )
        self._said = said
        return {
            name: finding
            for name, finding in said.items()
            if finding.code == "switch" or now - finding.first_s >= SETTLE_S
        }
