"""Memory of API servers, and its growth per node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity
from muster.doctor.evidence import Evidence
from muster.doctor.growing import RESIDENT, planned_memory_bytes
from muster.doctor.parts.hosts import Hosts
from muster.doctor.rule import Rule

_FULL: Final = 0.8


def _find(evidence: Evidence) -> Iterator[Finding]:
    host = evidence.part(Hosts)
    if host is None:
        return
    for server in evidence.servers:
        resident = next((value for _, value in server.series(RESIDENT)), 0.0)
        scale = evidence.scale
        planned = planned_memory_bytes(resident, scale) or resident
        each = (planned - resident) / max(scale.planned - scale.nodes, 1)
        limit = _FULL * host.memory_bytes
        if max(resident, planned) < limit:
            continue
        now = resident >= limit
        when = "uses" if now else f"will use at {scale.planned} nodes"
        share = (resident if now else planned) / host.memory_bytes
        yield Finding(
            id="memory-short",
            severity=Severity.ERROR if now else Severity.WARNING,
            title=f"The API server at {server.address} {when} {share:.0%} of the memory of its machine.",
            who=(Culprit("Node", host.node),),
            evidence=(
                Measure("resident memory", resident, "bytes", RESIDENT),
                Measure("more for each new node", each, "bytes", RESIDENT),
                Measure("memory of its machine", host.memory_bytes, "bytes", f"node {host.node}, status.capacity"),
            ),
            costs=(Cost("resident memory", "bytes", resident, planned, Growth.PER_NODE),),
            fix=Fix(
                "Give the control plane larger machines before the cluster grows. Fewer watches and smaller objects "
                "lower the memory; the read cache takes over watches of agents.",
            ),
        )


RULE: Final = Rule("memory", frozenset({RESIDENT}), _find, needs=(("memory of the API server", (RESIDENT,)),))
