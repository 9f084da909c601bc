"""The mesh of agents: the list of its members, and the faulty part if nodes cannot reach others.

Each agent probes a few others (fleet/health/peers.py) from the list in the ConfigMap `muster-mesh`. A single peer
report is not evidence; all reports together are (fleet/health/mesh.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.fleet.health.finding import Finding
from muster.fleet.health.mesh import Report, findings, judge
from muster.fleet.health.peers import Member
from muster.kube.addresses import is_address
from muster.kube.objects.node import Node

CONFIG_MAP = "muster-mesh"
KEY = "members.json"
BYTES_MAX = 900_000
"""A ConfigMap holds 1 MiB (Kubernetes docs, "ConfigMaps"): some ten thousand nodes."""
FRESH_S = 400.0
"""Agents write at least every five minutes. An older report is not used."""
SETTLE_S = 30.0
"""How long a finding about one node is delayed. Nodes behind a failed switch are reported one by one, because agents
probe every 15 s at different times, and report a failure after its second probe (agent/checks/reach.py). Without the
delay, the first of these nodes would look like a single faulty node."""


def members_of(nodes: Iterable[Node]) -> tuple[Member, ...]:
    """Return the nodes that can be probed, by name, with the zone and rack that their labels name.

    Agents do not resolve names, so an address that is not an IP address does not count.
    """
    found = []
    for node in nodes:
        internal = (each.address for each in node.status.addresses if each.type == "InternalIP")
        address = next(filter(is_address, internal), "")
        labels = node.metadata.labels
        domains = tuple(labels[key] for key in (LABEL_ZONE, LABEL_RACK) if labels.get(key))
        if address:
            found.append(Member(node.name, address, domains))
    return tuple(sorted(found, key=lambda member: member.name))


def text_of(members: Iterable[Member]) -> str:
    """Return the list in the agents' format; "" if it is too long for a ConfigMap."""
    encoded = msgspec.json.encode(list(members))
    return encoded.decode() if len(encoded) <= BYTES_MAX else ""


class Mesh:
    """The mesh's findings about nodes, each with the time at which it began."""

    def __init__(self) -> None:
        self._said: dict[str, Finding] = {}

    def judge(self, members: tuple[Member, ...], reports: Mapping[str, Report], now: float) -> dict[str, Finding]:
        """Return the findings about faulty nodes after a delay, and about nodes behind a faulty switch at once."""
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
                    # Agents repeat a report for minutes after the fault is over. A test that passed after the last
                    # failed probe must clear the finding, so the finding has the time of that probe.
                    last_s=min(now, missed_s.get(name, now)),
                )
        self._said = said
        return {
            name: finding
            for name, finding in said.items()
            if finding.code == "switch" or now - finding.first_s >= SETTLE_S
        }
