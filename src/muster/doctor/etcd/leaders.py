"""Leaders of etcd: members without one, and changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.etcd.members import HAS_LEADER, LEADER_CHANGES, EtcdMembers
from muster.doctor.evidence import Evidence
from muster.doctor.rule import Rule


def _find(evidence: Evidence) -> Iterator[Finding]:
    known = evidence.part(EtcdMembers)
    for member in known.members if known is not None else ():
        leader = member.value(HAS_LEADER)
        # A member that started in the window has counted its first election.
        seconds = member.metrics.seconds if member.metrics.before is not None else 0.0
        changes = sum(rate for _, rate in member.metrics.rates(LEADER_CHANGES)) * seconds
        if leader == 0:
            yield _finding(evidence, "etcd-no-leader", member.address, f"etcd {member.address} has no leader.", 0.0)
        elif changes >= 1:
            title = f"etcd {member.address} saw {changes:.0f} changes of its leader in {seconds:.0f} s."
            yield _finding(evidence, "etcd-leader-changes", member.address, title, changes)


def _finding(evidence: Evidence, name: str, address: str, title: str, changes: float) -> Finding:
    return Finding(
        id=name,
        severity=Severity.WARNING if changes else Severity.ERROR,
        title=title,
        who=(Culprit("Etcd", address),),
        evidence=(Measure("changes of the leader in the window", changes, "", LEADER_CHANGES),),
        costs=(cost("interruptions of all writes", "changes", changes, Growth.CONSTANT, evidence.scale),),
        fix=Fix(
            "Writes stop until a leader is elected. Look at the network between members, at their disks (fsync) and "
            "CPU. If members are far apart, raise --heartbeat-interval and --election-timeout on all of them.",
            ("etcdctl endpoint status --cluster -w table", "muster etcd config"),
        ),
    )


RULE: Final = Rule("etcd_leaders", frozenset(), _find)
