"""Writes of Leases: heartbeats of nodes, and elections of leaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Finding, Fix, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.workloads import busiest, clients_growth
from muster.doctor.rule import Rule

REQUESTS: Final = "apiserver_request_total"
NODE_RATE: Final = 0.1
"""A kubelet renews its Lease each 10 s (Kubernetes docs: "Nodes", Heartbeats)."""
OTHER_RATE: Final = 20.0
"""Renewals of leaders: with a period of 2 s, as in client-go, these are 40 elections."""
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY"})


def _find(evidence: Evidence) -> Iterator[Finding]:
    rate = sum(
        rate
        for labels, rate in evidence.rates(REQUESTS)
        if labels.get("resource") == "leases" and labels.get("verb") in _WRITES
    )
    usual = NODE_RATE * evidence.scale.nodes
    if not evidence.scale.known or rate <= 1.5 * usual + OTHER_RATE:
        return
    users = busiest(evidence, lambda use: use.resource == "leases" and use.verb in ("create", "update", "patch"))
    named = f"{users[0].kind} {users[0].name} writes" if users else "Clients write"
    growth = clients_growth(users)
    yield Finding(
        id="leases-busy",
        severity=Severity.WARNING,
        title=f"{named} Leases {rate:,.0f} times a second; heartbeats of nodes explain {usual:,.1f}.",
        who=users,
        evidence=(Measure("writes of Leases", rate, "requests/s", REQUESTS),),
        costs=(cost("writes of Leases", "requests/s", rate, growth, evidence.scale),),
        fix=Fix(
            "Raise the renewal period of these elections (--leader-elect-retry-period), and let programs on each node "
            "elect no leader. Each write goes through etcd.",
            ("kubectl get leases -A --sort-by=.spec.renewTime",),
        ),
    )


RULE: Final = Rule("leases", frozenset({REQUESTS}), _find, needs=(("writes of Leases", (REQUESTS,)),))
